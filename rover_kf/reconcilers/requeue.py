# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When a job is looked at again, and how often what it has done is written down; pure.

A decision waits for a throughput window to close, and a steady job's windows close at times that
can be foretold: a look just after that decides at once, where looks at fixed times would be late by
half of their distance, or many. All else that a look finds is told by the job's own changes, or can
wait a little; so what is done only now and then is done less often for each of many jobs.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.status import CoordinatorStatus
from rover_kf.reconcilers.plan import Observed

CALM_SECONDS = 30.0
"""A running job is looked at this often at least, while jobs are few."""
CALM_LOOKS = 50.0
"""A second, over all jobs, that come only of that."""
WRITES = 8.0
"""Of progress a second, over all jobs: to their annotations, and to the history."""
MOVING_SECONDS = 2.0
"""Between two looks while a change of ours has still to be made, or the world to form."""
WARM_UP_SECONDS = 5.0
"""Between two looks after a change of ours, until the first window of the new world is begun."""
REPORTED_SECONDS = 0.5
"""After a window's last step, until every rank has reported it."""
ASK_AGAIN_SECONDS = 0.75
"""Where a window is late; no more often than that."""
PATIENCE_SECONDS = 5.0
"""How late a window may be, besides two steps, before it is asked for less and less often."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How often, with so many jobs."""

    jobs: int = 1

    @property
    def calm_seconds(self) -> float:
        """Longest time between two looks at a running job."""
        return max(CALM_SECONDS, self.jobs / CALM_LOOKS)

    def write_seconds(self, window: float) -> float:
        """Time between two writes of a job's progress.

        Args:
            window: seconds of its throughput windows.
        """
        return max(window, self.jobs / WRITES)


def delay(seen: Observed, pace: Pace, *, moving: bool) -> float:
    """Seconds until the next look at a job about which nothing else is to be done.

    Args:
        seen: the job now.
        pace: for as many jobs as there are.
        moving: whether a change of its size is under way or on trial.
    """
    window = seen.policy.window_seconds
    if moving and not _formed(seen):
        return min(window / 2, MOVING_SECONDS)
    due = None if seen.status is None else until_window(seen.status)
    if due is None:
        return min(window / 2, WARM_UP_SECONDS if moving else pace.calm_seconds)
    # Looks between two windows are spread evenly.
    return due / max(1, round(due / pace.calm_seconds))


def until_window(status: CoordinatorStatus) -> float | None:
    """Seconds until the next throughput window has probably closed; None: it cannot be foretold."""
    if status.phase != "training":
        return None
    closes = status.window_closes or _foretold(status)
    if not closes:
        return None
    late = status.now - closes - REPORTED_SECONDS
    if late < 0:
        return -late
    patience = PATIENCE_SECONDS + 2 * (status.windows[-1].step_seconds if status.windows else 0.0)
    return ASK_AGAIN_SECONDS if late < patience else late / 2


def _foretold(status: CoordinatorStatus) -> float:
    """By the last window of this world, where the coordinator does not say; 0: not at all."""
    last = status.windows[-1] if status.windows else None
    if last is None or (last.nodes, last.world_size) != (status.nodes, status.world_size):
        return 0.0
    return 2 * last.ended_at - last.started_at


def _formed(seen: Observed) -> bool:
    """Whether the job trains at the size that it asks for."""
    status = seen.status
    if status is None or status.phase != "training":
        return False
    return status.nodes == status.expected_nodes == seen.job.nodes
