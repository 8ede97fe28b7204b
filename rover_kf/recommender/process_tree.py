# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a process and its descendants, from /proc.

Memory is counted as a container is charged for it: what processes share is counted once. Linux
only, like the pods that the numbers are for.
"""

from __future__ import annotations

import dataclasses

from rover_kf.system import procfs


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Bytes of memory."""

    anonymous: int = 0
    """Of no file: heaps, stacks, shared memory; each page once."""
    files: int = 0
    """Of mapped files, by the process that has most of them: the others map the same libraries."""

    @property
    def total(self) -> int:
        """Both."""
        return self.anonymous + self.files


def measure_footprint(pids: tuple[int, ...]) -> MemoryFootprint:
    """What the processes hold together now."""
    each = [_footprint(pid) for pid in pids]
    own = sum(one.anonymous for one in each)
    return MemoryFootprint(own, max((one.files for one in each), default=0))


def unsampled_peaks(seen: dict[int, int], pids: tuple[int, ...]) -> dict[int, int]:
    """What each process held at its worst beyond what looks have seen of it, in bytes.

    Args:
        seen: most that any look saw resident, by process; brought up to date.
        pids: that are looked at now.
    """
    found = {}
    for pid in pids:
        counts = procfs.status_sizes(pid)
        if "VmHWM" in counts:
            seen[pid] = max(seen.get(pid, 0), counts.get("VmRSS", 0))
            found[pid] = max(0, counts["VmHWM"] - seen[pid])
    return found


def _footprint(pid: int) -> MemoryFootprint:
    counts = procfs.rollup_sizes(pid)
    own = counts.get("Pss_Anon", 0) + counts.get("Pss_Shmem", 0)
    shared = procfs.status_sizes(pid).get("RssShmem", 0)
    files = counts.get("Rss", 0) - counts.get("Anonymous", 0) - shared
    return MemoryFootprint(own, max(0, files))
