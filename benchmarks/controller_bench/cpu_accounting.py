# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who had how much of the machine's processors, and how long the controller waited for one.

All parties share one machine here, where a cluster has a machine for each: so a decision that comes
late is told with what the others took meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Mapping

from testcluster.processes import Daemon, Registry

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = pathlib.Path("/proc")
_IDLE = (3, 4)
"""Of a line of /proc/stat: idle, and waiting for a disk."""
_GUESTS = 8
"""From there on it counts again what users have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of processors that everybody has taken so far."""

    at: float
    by: Mapping[str, float]
    """Of this benchmark's processes, itself as ``bench``."""
    machine: float
    """Of all processes of the machine."""
    waited: Mapping[str, float]
    """How long threads that could run had no processor; of those that still live."""

    @classmethod
    def now(cls, registry: Registry) -> Taken:
        """Read it."""
        daemons = [daemon for daemon in registry.all() if daemon.alive()]
        mine = os.times()
        by = {daemon.name: cpu_seconds(daemon) for daemon in daemons}
        waited = {daemon.name: _waited(daemon) for daemon in daemons}
        here = {**by, "bench": mine.user + mine.system}
        return cls(time.monotonic(), here, _machine(), waited)

    def spent(self, before: Taken) -> dict[str, float]:
        """Seconds of processors that each has taken between."""
        return {
            name: seconds - before.by[name]
            for name, seconds in self.by.items()
            if name in before.by
        }

    def since(self, before: Taken) -> dict[str, object]:
        """Cores that each had on average, what is left for all others, and who waited."""
        passed = self.at - before.at
        by = {name: round(spent / passed, 3) for name, spent in self.spent(before).items()}
        busy = (self.machine - before.machine) / passed
        controller = self.waited["controller"] - before.waited["controller"]
        return {
            "cores_there": os.cpu_count(),
            "cores_busy": round(busy, 2),
            "cores_by": by,
            "cores_of_others": round(max(busy - sum(by.values()), 0.0), 2),
            "controller_waited_for_a_core": round(controller / passed, 3),
        }


def cpu_seconds(daemon: Daemon) -> float:
    """Of all its threads."""
    fields = (_PROC / str(daemon.pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _waited(daemon: Daemon) -> float:
    tasks = (_PROC / str(daemon.pid) / "task").iterdir()
    return sum(_nanoseconds_waited(task) for task in tasks) / 1e9


def _nanoseconds_waited(task: pathlib.Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[1])
    except OSError:  # the thread has ended, or this kernel does not count it
        return 0


def _machine() -> float:
    with (_PROC / "stat").open(encoding="utf-8") as lines:
        ticks = [int(word) for word in next(lines).split()[1:]]
    return sum(n for place, n in enumerate(ticks[:_GUESTS]) if place not in _IDLE) / _TICKS
