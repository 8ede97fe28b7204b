# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether processes and files grow without bound; pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from soaking import schedule

ALLOWED_SHARE, ALLOWED_MIB, ALLOWED_DESCRIPTORS = 1.2, 8.0, 8.0
"""Second half's median against the first half's: at most so many times it, plus so much."""
WARM_UP_SECONDS = 60.0
"""A process's first minute: it loads what it needs."""
LEAST_HOURS = 0.25
"""Of old processes' time; less says nothing about growth in an hour."""
ALLOWED_MIB_PER_HOUR = 60.0
"""In one process's life: processes that a fault replaces every few minutes hide a slow leak."""
MOST_ARENA_FILES = 5
"""Of a pod: two slots, their record, the rank that they belong to, and that written aside."""
MOST_OWN_FILES = 64
"""Objects, events, the history, the token: no fault makes one of them anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment."""

    role: str
    process: int
    at: float
    """Monotonic seconds."""
    rss_mib: float
    descriptors: float


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """How many there are at one moment."""

    arena: int
    """Most in the arena of one pod."""
    memory: int
    """Memory-backed volumes of the job."""
    storage: int
    """Checkpoint folders on storage."""
    state: int
    """Files in the state folder, without checkpoints and pods' logs."""
    logs: int
    """Folders of pods' logs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """Medians of a measure over the first and the second half of a role's samples."""

    first: float
    second: float


def growth(samples: Sequence[Sample], role: str, measure: str) -> Growth:
    """How a role's measure went over time, whichever processes played it.

    Args:
        samples: two of that role at least, in the order of time.
        role: whose.
        measure: ``rss_mib`` or ``descriptors``.
    """
    values = [getattr(item, measure) for item in samples if item.role == role]
    middle = len(values) // 2
    return Growth(statistics.median(values[:middle]), statistics.median(values[middle:]))


def mib_per_hour(samples: Sequence[Sample], role: str) -> float | None:
    """Growth of single processes after their warm-up, pooled; None if too little was seen."""
    grown, hours = 0.0, 0.0
    for process in {item.process for item in samples if item.role == role}:
        mine = [item for item in samples if (item.role, item.process) == (role, process)]
        old = [item for item in mine if item.at >= mine[0].at + WARM_UP_SECONDS]
        if len(old) > 1:
            grown += old[-1].rss_mib - old[0].rss_mib
            hours += (old[-1].at - old[0].at) / 3600
    return grown / hours if hours >= LEAST_HOURS else None


def grown(samples: Sequence[Sample]) -> list[str]:
    """Roles whose memory or descriptors grew beyond the tolerance."""
    broken = []
    for role in sorted({item.role for item in samples}):
        for measure, extra in (("rss_mib", ALLOWED_MIB), ("descriptors", ALLOWED_DESCRIPTORS)):
            found = growth(samples, role, measure)
            if found.second > found.first * ALLOWED_SHARE + extra:
                broken.append(f"{measure} of {role}: {found.first:.1f}, then {found.second:.1f}")
        rate = mib_per_hour(samples, role)
        if rate is not None and rate > ALLOWED_MIB_PER_HOUR:
            broken.append(f"a {role} grows by {rate:.0f} MiB an hour")
    return broken


def piled_up(files: Iterable[Files], *, keep: int, pods_made: int) -> list[str]:
    """Kinds of files of which there were more than the design has room for.

    Args:
        files: counts over time.
        keep: checkpoints that retention leaves.
        pods_made: pods that were ever made.
    """
    most = Files(
        arena=MOST_ARENA_FILES,
        memory=schedule.MOST,
        # One that is being written, one that a killed writer left until the next commit.
        storage=keep + 2,
        state=MOST_OWN_FILES,
        logs=pods_made,
    )
    worst: dict[str, int] = {}
    for item in files:
        for name, count in dataclasses.asdict(item).items():
            worst[name] = max(worst.get(name, 0), count)
    return [
        f"{name}: {count}, {getattr(most, name)} are allowed"
        for name, count in worst.items()
        if count > getattr(most, name)
    ]
