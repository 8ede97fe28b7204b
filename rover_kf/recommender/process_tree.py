# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU of a process and its descendants, from /proc.

Memory is counted as a container is charged for it: what processes share is counted once. Linux
only, like the pods that the numbers are for.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

_PROC = pathlib.Path("/proc")
_KIB = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of memory."""

    own: int = 0
    """Of no file: heaps, stacks, shared memory; each page once."""
    files: int = 0
    """Of mapped files, by the process that has most of them: the others map the same libraries."""

    @property
    def total(self) -> int:
        """Both."""
        return self.own + self.files


def members(root: int) -> tuple[int, ...]:
    """The process and its descendants, as far as they are there."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return tuple(found)


def footprint(pids: tuple[int, ...]) -> Footprint:
    """What the processes hold together now."""
    each = [_footprint(pid) for pid in pids]
    own = sum(one.own for one in each)
    return Footprint(own, max((one.files for one in each), default=0))


def hidden(seen: dict[int, int], pids: tuple[int, ...]) -> dict[int, int]:
    """What each process held at its worst beyond what looks have seen of it, in bytes.

    Args:
        seen: most that any look saw resident, by process; brought up to date.
        pids: that are looked at now.
    """
    found = {}
    for pid in pids:
        counts = _status(pid)
        if "VmHWM" in counts:
            seen[pid] = max(seen.get(pid, 0), counts.get("VmRSS", 0))
            found[pid] = max(0, counts["VmHWM"] - seen[pid])
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 if it is gone."""
    fields = _stat(pid)
    ticks = int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _footprint(pid: int) -> Footprint:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:  # it ended
        return Footprint()
    lines = (line.split() for line in text.splitlines()[1:])
    counts = {words[0]: int(words[1]) * _KIB for words in lines}
    own = counts.get("Pss_Anon:", 0) + counts.get("Pss_Shmem:", 0)
    resident = counts.get("Rss:", 0)
    shared = _status(pid).get("RssShmem", 0)
    return Footprint(own, max(0, resident - counts.get("Anonymous:", 0) - shared))


def _status(pid: int) -> dict[str, int]:
    """Bytes by name of /proc/PID/status; empty if the process is gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    words = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(count) * _KIB for name, count, _ in words}


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
