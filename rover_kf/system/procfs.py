# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What Linux tells of a process in /proc; of one that is gone, nothing."""

from __future__ import annotations

import os
import pathlib

_PROC = pathlib.Path("/proc")
_START_FIELD = 19
"""Of ``stat``, behind the command's name (proc_pid_stat(5), starttime)."""
_KIB = 1024
_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12
"""Fields of stat, from the state on."""


def parent(pid: int) -> int | None:
    """What started it, or who has taken it over; None if it is gone."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else None


def descendants(root: int) -> list[int]:
    """Processes below one at this moment, nearest first."""
    below: dict[int | None, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            below.setdefault(parent(int(entry.name)), []).append(int(entry.name))
    found = list(below.get(root, []))
    for pid in found:
        found.extend(below.get(pid, []))
    return found


def ancestors(pid: int) -> list[int]:
    """What started it, what started that, and so on, as far as this process can see them."""
    found: list[int] = []
    above = parent(pid)
    while above:
        found.append(above)
        above = parent(above)
    return found


def children(pid: int) -> list[int]:
    """Processes that its threads have started; empty where the kernel has no such files."""
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # or a thread that ended
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time; 0 if it is gone."""
    fields = _stat(pid)
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0: not known."""
    found = _stat(pid)
    return int(found[_START_FIELD]) if len(found) > _START_FIELD else 0


def status_sizes(pid: int) -> dict[str, int]:
    """Bytes by name of its status (``VmRSS``, ``RssAnon``, …)."""
    words = (line.split() for line in _lines(pid, "status") if line.endswith(" kB"))
    return {name.rstrip(":"): int(count) * _KIB for name, count, _ in words}


def rollup_sizes(pid: int) -> dict[str, int]:
    """Bytes by name of its mappings' sums (``Rss``, ``Pss_Anon``, …)."""
    words = (line.split() for line in _lines(pid, "smaps_rollup")[1:])
    return {found[0].rstrip(":"): int(found[1]) * _KIB for found in words}


def _stat(pid: int) -> list[str]:
    text = "\n".join(_lines(pid, "stat"))
    return text.rpartition(")")[2].split()


def _lines(pid: int, name: str) -> list[str]:
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace").splitlines()
    except OSError:
        return []
