# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What this process and its loaders' workers take of the container, from /proc."""

from __future__ import annotations

import dataclasses
import os
import time

from rover_kf.api import proc_files

_EVERY_SECONDS = 2.0
_LEAST_SECONDS = 1.0
"""Over which CPU time says something."""
_LAUNCHERS = 2
"""Processes above a rank that are of its container, too: what forked it, what started that."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """At one moment."""

    own: int = 0
    """Bytes of no file, of the process and its children."""
    shared: int = 0
    """Bytes that ranks of one container hold once: libraries, and the launcher's own."""
    cores: float = 0.0
    """Kept busy since the last look."""


class UsageMeter:
    """Looks at most every two seconds; not shared between threads."""

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._used = self._cpu_seconds(self._members())
        self._used_at = time.monotonic()
        self._last = Usage()

    def look(self) -> Usage:
        """What is taken now, or was a moment ago."""
        now = time.monotonic()
        if now - self._looked_at >= _EVERY_SECONDS:
            self._looked_at = now
            self._last = self._measure(now)
        return self._last

    def _measure(self, now: float) -> Usage:
        members = self._members()
        each = [proc_files.sizes(pid) for pid in members]
        own = sum(one.get("RssAnon", 0) for one in each)
        files = max((one.get("RssFile", 0) for one in each), default=0)
        launcher = sum(proc_files.sizes(pid).get("RssAnon", 0) for pid in _ancestors())
        cores, used, spent = self._last.cores, self._cpu_seconds(members), now - self._used_at
        if spent >= _LEAST_SECONDS:
            cores = max(0.0, used - self._used) / spent
            self._used, self._used_at = used, now
        return Usage(own, files + launcher, cores)

    def _members(self) -> list[int]:
        return [os.getpid(), *proc_files.children(os.getpid())]

    def _cpu_seconds(self, members: list[int]) -> float:
        return sum(proc_files.cpu_seconds(pid) for pid in members)


def _ancestors() -> list[int]:
    found: list[int] = []
    pid: int | None = os.getppid()
    while pid is not None and pid > 1 and len(found) < _LAUNCHERS:
        found.append(pid)
        pid = proc_files.parent(pid)
    return found
