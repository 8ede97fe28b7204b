# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which embedded jobs change: their files are looked at again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from rover_kf.api.jobs import JobKey, ObservedJob


def changes(
    listed: Callable[[], tuple[ObservedJob, ...]], timeout_seconds: float, every: float
) -> Iterator[JobKey]:
    """Keys of jobs that change, as they change.

    Args:
        listed: all jobs now; what they are when this is called is no change.
        timeout_seconds: after which it ends.
        every: seconds between two looks while nothing changes.
    """
    return _changes(listed, _versions(listed), time.monotonic() + timeout_seconds, every)


def _changes(
    listed: Callable[[], tuple[ObservedJob, ...]],
    before: dict[JobKey, str],
    deadline: float,
    every: float,
) -> Iterator[JobKey]:
    pause = threading.Event()
    while time.monotonic() < deadline:
        now = _versions(listed)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        before = now
        yield from changed
        if not changed:
            pause.wait(min(every, max(deadline - time.monotonic(), 0)))


def _versions(listed: Callable[[], tuple[ObservedJob, ...]]) -> dict[JobKey, str]:
    return {job.key: job.resource_version for job in listed()}
