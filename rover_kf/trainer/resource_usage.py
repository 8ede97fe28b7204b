# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""This process's use of cores, and the memory of all processes of its container.

Forked processes share most of their pages, which a sum would count repeatedly. So one rank measures
the container: by the control group where it is ours alone, else by each process's share of its
pages.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time

from rover_kf.system import procfs

V2 = pathlib.Path("/sys/fs/cgroup")
V1 = V2 / "memory"
"""Where a container finds its own control group."""
_UNRECLAIMABLE = (
    ("anon", "shmem", "kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable"),
    ("total_rss", "total_shmem"),
)
"""Of memory.stat, by version, without pages of files: the kernel drops those before it kills."""


def find_cgroup(launcher: int, cgroups: tuple[pathlib.Path, ...] = (V2, V1)) -> pathlib.Path | None:
    """Return the launcher's control group; None where others use it, too."""
    for place in cgroups:
        inside = _members(place)
        if os.getpid() in inside and _counts(place):
            return place if _is_alone(launcher, inside) else None
    return None


def unreclaimable_bytes(group: pathlib.Path) -> int:
    """Return the bytes that a control group cannot be made to drop; 0 if they are unreadable."""
    counts = _counts(group)
    return max(sum(counts.get(name, 0) for name in version) for version in _UNRECLAIMABLE)


def process_tree(launcher: int) -> list[int]:
    """The launcher and all processes below it, at this moment."""
    return [launcher, *procfs.descendants(launcher)]


def _is_alone(launcher: int, pids: set[int]) -> bool:
    strangers = pids - {*process_tree(launcher), *procfs.ancestors(launcher)}
    # A process of another namespace is told as 0; one that has ended meanwhile is no stranger.
    return not any(pid == 0 or procfs.parent(pid) is not None for pid in strangers)


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


_EVERY_SECONDS = 2.0
_LEAST_SECONDS = 1.0
"""Over which CPU time says something."""
_MOST_OF_TIME = 0.01
"""That looks may take: to count the pages of a large process takes long."""


@dataclasses.dataclass(frozen=True)
class ResourceUsage:
    """At one moment."""

    memory: int = 0
    """Bytes of no file in the container, each page once; 0: another rank reports them."""
    files: int = 0
    """Bytes of mapped files, by the process that has most of them: the others map the same."""
    cores: float = 0.0
    """Kept busy since the last look, by this process and its children."""


class ResourceMeter:
    """A meter that measures at most every two seconds; not shared between threads.

    A ``launcher`` that this process does not descend from counts as none: the process trains alone.
    """

    def __init__(self, launcher: int = 0, *, reports_container: bool = True) -> None:
        own = os.getpid()
        self._launcher = launcher if launcher in procfs.ancestors(own) else own
        self._reports_container = reports_container
        # Known once: a shell that somebody opens in the container counts against its limit.
        self._cgroup = find_cgroup(self._launcher) if reports_container else None
        self._next_measurement_at = 0.0
        self._used = self._cpu_seconds()
        self._used_at = time.monotonic()
        self._last = ResourceUsage()

    def measure(self) -> ResourceUsage:
        """What is taken now, or was a moment ago."""
        now = time.monotonic()
        if now >= self._next_measurement_at:
            memory, files = self._memory() if self._reports_container else (0, 0)
            self._last = ResourceUsage(memory, files, self._cores(now))
            spent = time.monotonic() - now
            self._next_measurement_at = now + max(_EVERY_SECONDS, spent / _MOST_OF_TIME)
        return self._last

    def _memory(self) -> tuple[int, int]:
        members = process_tree(self._launcher)
        files = max((procfs.status_sizes(pid).get("RssFile", 0) for pid in members), default=0)
        if self._cgroup is not None:
            return unreclaimable_bytes(self._cgroup), files
        return sum(procfs.rollup_sizes(pid).get("Pss_Anon", 0) for pid in members), files

    def _cores(self, now: float) -> float:
        spent = now - self._used_at
        if spent < _LEAST_SECONDS:
            return self._last.cores
        used = self._cpu_seconds()
        cores = max(0.0, used - self._used) / spent
        self._used, self._used_at = used, now
        return cores

    def _cpu_seconds(self) -> float:
        members = [os.getpid(), *procfs.children(os.getpid())]
        return sum(procfs.cpu_seconds(pid) for pid in members)
