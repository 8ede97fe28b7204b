# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Cores that this process and its children keep busy."""

from __future__ import annotations

import os
import pathlib
import time

_CHILDREN = pathlib.Path("/proc/self/task")


class Busy:
    """CPU time over wall time since ``begin``."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._used = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._begun, self._used = time.perf_counter(), _used()

    @property
    def seconds(self) -> float:
        """Since then."""
        return time.perf_counter() - self._begun

    def cores(self) -> float:
        """Mean since then; children that ended meanwhile do not count."""
        return max(0.0, _used() - self._used) / max(self.seconds, 1e-9)


def _used() -> float:
    return time.process_time() + sum(_of(child) for child in _children())


def _children() -> list[str]:
    try:
        lists = [(task / "children").read_text().split() for task in _CHILDREN.iterdir()]
    except OSError:  # no such file in this kernel, or a thread that ended: its children are unknown
        return []
    return [pid for pids in lists for pid in pids]


def _of(pid: str) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it ended
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
