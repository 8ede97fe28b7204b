# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How busy this container was, and how often the kernel held it back, since it began."""

from __future__ import annotations

import pathlib
import time

from rover_kf.api.cpu import CpuCount

GROUPS = pathlib.Path("/sys/fs/cgroup")
"""Where a container finds its own control groups."""
_MICRO, _NANO = 1e-6, 1e-9


def read(groups: pathlib.Path = GROUPS) -> CpuCount | None:
    """The counts of now; None where the container has no limit of cores, or none can be read."""
    try:
        return _second(groups) if (groups / "cpu.max").exists() else _first(groups)
    except (OSError, ValueError, KeyError):
        return None


def _second(group: pathlib.Path) -> CpuCount | None:
    """Of the second version of control groups."""
    quota, period = (group / "cpu.max").read_text().split()
    if not quota.isdigit():
        return None
    counts = _counts(group)
    used = counts["usage_usec"] * _MICRO
    return _count(int(quota), int(period), used, counts["nr_throttled"])


def _first(groups: pathlib.Path) -> CpuCount | None:
    cpu = groups / "cpu"
    quota = int((cpu / "cpu.cfs_quota_us").read_text())
    if quota <= 0:
        return None
    period = int((cpu / "cpu.cfs_period_us").read_text())
    used = int((groups / "cpuacct" / "cpuacct.usage").read_text()) * _NANO
    return _count(quota, period, used, _counts(cpu)["nr_throttled"])


def _count(quota: int, period: int, used: float, throttled: int) -> CpuCount:
    return CpuCount(time.monotonic(), used, throttled, period * _MICRO, quota / period)


def _counts(group: pathlib.Path) -> dict[str, int]:
    words = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return {name: int(count) for name, count in words}
