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

IDLE_SECONDS = 30.0
"""A running job is looked at this often at least, while jobs are few."""
IDLE_RECONCILES = 50.0
"""A second, over all jobs, that come only of that."""
WRITES = 8.0
"""Of progress a second, over all jobs: to their annotations, and to the history."""
MOVING_SECONDS = 2.0
"""Between two looks while a change of ours has still to be made, or the world to form."""
WARM_UP_SECONDS = 5.0
"""Between two looks after a change of ours, until the first window of the new world is begun."""
REPORTED_SECONDS = 0.5
"""After a window's last step, until every rank has reported it."""
RETRY_LATE_SECONDS = 0.75
"""Where a window is late; no more often than that."""
LATE_SECONDS = 5.0
"""How late a window may be, besides two steps, before it is asked for less and less often."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequeueIntervals:
    """How often, with so many jobs."""

    jobs: int = 1

    @property
    def idle_seconds(self) -> float:
        """Longest time between two looks at a running job."""
        return max(IDLE_SECONDS, self.jobs / IDLE_RECONCILES)

    def write_seconds(self, window: float) -> float:
        """Time between two writes of a job's progress.

        Args:
            window: seconds of its throughput windows.
        """
        return max(window, self.jobs / WRITES)


def delay(observed: Observed, intervals: RequeueIntervals, *, moving: bool) -> float:
    """Seconds until the next look at a job about which nothing else is to be done.

    Args:
        observed: the job now.
        intervals: for as many jobs as there are.
        moving: whether a change of its size is under way or on trial.
    """
    window = observed.policy.window_seconds
    if moving and not _is_at_target_size(observed):
        return min(window / 2, MOVING_SECONDS)
    due = None if observed.status is None else seconds_until_window(observed.status)
    if due is None:
        return min(window / 2, WARM_UP_SECONDS if moving else intervals.idle_seconds)
    # Looks between two windows are spread evenly.
    return due / max(1, round(due / intervals.idle_seconds))


def seconds_until_window(status: CoordinatorStatus) -> float | None:
    """Seconds until the next throughput window has probably closed; None: it cannot be foretold."""
    if status.phase != "training":
        return None
    closes = status.window_closes or _predict_window(status)
    if not closes:
        return None
    late = status.now - closes - REPORTED_SECONDS
    if late < 0:
        return -late
    patience = LATE_SECONDS + 2 * (status.windows[-1].step_seconds if status.windows else 0.0)
    return RETRY_LATE_SECONDS if late < patience else late / 2


def _predict_window(status: CoordinatorStatus) -> float:
    """By the last window of this world, where the coordinator does not say; 0: not at all."""
    last = status.windows[-1] if status.windows else None
    if last is None or (last.nodes, last.world_size) != (status.nodes, status.world_size):
        return 0.0
    return 2 * last.ended_at - last.started_at


def _is_at_target_size(observed: Observed) -> bool:
    """Whether the job trains at the size that it asks for."""
    status = observed.status
    if status is None or status.phase != "training":
        return False
    return status.nodes == status.expected_nodes == observed.job.nodes
