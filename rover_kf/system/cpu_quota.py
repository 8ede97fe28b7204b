# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many cores this process may use: the smaller of its affinity and its group's quota."""

from __future__ import annotations

import os
import pathlib

MAX_THREADS = 4
"""Of one copy or checksum; more find no more bandwidth."""

_ROOT = pathlib.Path("/sys/fs/cgroup")
_CGROUP_FILE = pathlib.Path("/proc/self/cgroup")


def available(root: pathlib.Path = _ROOT, cgroup_file: pathlib.Path = _CGROUP_FILE) -> float:
    """Cores that this process and its neighbours in the control group have, together.

    Args:
        root: where control groups are mounted.
        cgroup_file: the file that names this process's groups.
    """
    return min(float(len(os.sched_getaffinity(0))), *_quotas(root, cgroup_file))


def threads_per_process(processes: int) -> int:
    """Threads that one of so many processes may copy or sum with while nobody trains.

    Args:
        processes: of this container that do so at once.
    """
    return max(min(int(available() / processes), MAX_THREADS), 1)


def _quotas(root: pathlib.Path, cgroup_file: pathlib.Path) -> list[float]:
    found = [float("inf")]
    for line in _text(cgroup_file).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount = root / "unified" if (root / "unified").is_dir() else root
            read = _quota_v2
        elif "cpu" in controllers.split(","):
            mount, read = root / controllers, _quota_v1
            mount = mount if mount.is_dir() else root / "cpu"
        else:
            continue
        # Inside a container the mount is the group itself, whatever its path is outside.
        folder = mount / path.lstrip("/")
        above = [item for item in folder.parents if mount in (item, *item.parents)]
        found += [read(item) for item in (mount, folder, *above)]
    return found


def _quota_v2(folder: pathlib.Path) -> float:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and int(period) else float("inf")


def _quota_v1(folder: pathlib.Path) -> float:
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    limited = quota.strip().isdigit() and period.strip().isdigit()
    return int(quota) / int(period) if limited else float("inf")


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such group or controller here: no quota
        return ""
