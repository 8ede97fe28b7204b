# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that no node has room for, told with the scheduler's reason; pure.

Kubernetes says it on the pod alone, and the Training Operator nothing at all: the job looks as if
it were about to start, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.reconcilers.plan import Observed

PATIENCE_SECONDS = 10.0
"""A node may come free in that time, or one be added."""
_MOST_NAMED = 3


def told(seen: Observed, now: float) -> Iterator[tuple[str, Event]]:
    """An Event about pods that find no node, once each time that some begin to."""
    waiting = _waiting(seen)
    if not waiting:
        return
    since = min(pod.unplaced_since for pod in waiting)
    if now - since < PATIENCE_SECONDS:
        return
    found = ", ".join(pod.name for pod in waiting[:_MOST_NAMED])
    more = f" and {len(waiting) - _MOST_NAMED} more" if len(waiting) > _MOST_NAMED else ""
    message = (
        f"{found}{more}: no node for {now - since:.0f} s: {waiting[0].unplaced}; the job waits "
        "until there is one (failures.suspend-after ends the wait)"
    )
    event = Event(names.EVENT_NOT_PLACED, message, warning=True, at=now)
    yield f"unplaced:{since:.0f}", event


def delay(seen: Observed, now: float) -> float | None:
    """Seconds until it is to be told; None if nobody waits, or it is told."""
    ends = (pod.unplaced_since + PATIENCE_SECONDS - now for pod in _waiting(seen))
    return min((left for left in ends if left > 0), default=None)


def _waiting(seen: Observed) -> tuple[Pod, ...]:
    if seen.job.finished or seen.job.suspended or seen.job.deleting:
        return ()
    return tuple(pod for pod in seen.pods if pod.unplaced and not pod.deleting)
