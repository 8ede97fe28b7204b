# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the container that this process trains in, as the kernel counts it against its limit.

Pages of files are not in it: before it kills for memory, the kernel drops those.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

from rover_kf.api import proc_files

V2 = pathlib.Path("/sys/fs/cgroup")
V1 = V2 / "memory"
"""Where a container finds its own control group."""
_HELD = (
    ("anon", "shmem", "kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable"),
    ("total_rss", "total_shmem"),
)
"""What of memory.stat stays until it is given up: of the second version, of the first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """One that holds nothing but a launcher, what it has started, and what has started it."""

    group: pathlib.Path
    """Its control group."""

    def held(self) -> int:
        """Bytes that it cannot be made to drop; 0 if they cannot be read."""
        counts = _counts(self.group)
        return max(sum(counts.get(name, 0) for name in version) for version in _HELD)


def of(launcher: int, places: tuple[pathlib.Path, ...] = (V2, V1)) -> Container | None:
    """The container; None where others use the control group, too, or there is none to read.

    Args:
        launcher: process number of what trains here.
        places: where a control group may be.
    """
    for place in places:
        inside = _members(place)
        if os.getpid() in inside and _counts(place):
            return Container(place) if _alone(launcher, inside) else None
    return None


def family(launcher: int) -> list[int]:
    """The launcher and all processes below it, at this moment."""
    return [launcher, *proc_files.descendants(launcher)]


def _alone(launcher: int, inside: set[int]) -> bool:
    strangers = inside - {*family(launcher), *proc_files.ancestors(launcher)}
    # A process of another namespace is told as 0; one that has ended meanwhile is no stranger.
    return not any(pid == 0 or proc_files.parent(pid) is not None for pid in strangers)


def _members(group: pathlib.Path) -> set[int]:
    try:
        return {int(word) for word in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def _counts(group: pathlib.Path) -> dict[str, int]:
    try:
        words = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        return {name: int(count) for name, count in words}
    except OSError:
        return {}
