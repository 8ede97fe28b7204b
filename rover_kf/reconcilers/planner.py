# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Plans a tick: proposes a size, applies the policies, and says when to look again; pure.

``propose`` comes before the second observe step, ``plan`` after it.

A decision waits for a throughput window to close, and a steady job's windows close at times that
can be foretold: a look just after that decides at once, where looks at fixed times would be late by
half of their distance, or many. All else that a look finds is told by the job's own changes, or can
wait a little; so what is done only now and then is done less often for each of many jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rover_kf.api.status import CoordinatorStatus
from rover_kf.reconcilers import events, status_annotation
from rover_kf.reconcilers.plan import Observed, PatchJob, ReconcilePlan
from rover_kf.reconcilers.policies import (
    absent_pods,
    cpu_limits,
    cpu_overrequest,
    lost_nodes,
    memory_limits,
    node_exclusion,
    pending_pods,
    permanent_exits,
    pipeline_lease,
    straggler_policy,
    suspend_cycle,
    suspend_policy,
)
from rover_kf.reconcilers.scaling import replica_scaling, scaling_proposal
from rover_kf.reconcilers.status_annotation import JobStatus

Policy = Callable[[ReconcilePlan, Observed, float], ReconcilePlan]
"""Extends the plan of a job as it is at a time (Unix seconds)."""


# Each policy sees what the ones before it have planned, and effects are applied in this order.
POLICIES: tuple[Policy, ...] = (
    # Reports come first, so that Events explain the deletions after them. The durable step of the
    # annotation is updated here, too; the suspend policies need it.
    events.apply,
    # Before all that waits for pods: the operator creates no pod while its lost namesake is there.
    lost_nodes.apply,
    # Before more pods are replaced: a round that waits now can form without those that cannot come.
    absent_pods.apply,
    # Before CPU: after a kill launchers wait for this raise; nothing waits for more cores.
    memory_limits.apply,
    # Before scaling: more cores come before more replicas. Sets Plan.cpu for the policies below.
    cpu_limits.apply,
    # It only reports, so it comes after the limits that were changed.
    cpu_overrequest.apply,
    # Before node exclusion, which replaces the straggler if its node is put on the list here.
    straggler_policy.apply,
    # After all that puts nodes on the list: one patch of the pod templates contains them.
    node_exclusion.apply,
    # After the policies that replace single pods: this one may end the whole job.
    permanent_exits.apply,
    # It reads Plan.cpu: the job does not grow while the effect of a raise is not measured.
    replica_scaling.apply,
    # The last resort for a job that cannot train. Its patch contains what scaling decided.
    suspend_policy.apply,
    # Its reason replaces the one above if both suspend: nobody waits for the job any more.
    pipeline_lease.apply,
    # Last: it begins no cycle if a policy above suspends the job, which would end that suspension.
    suspend_cycle.apply,
)


def propose(seen: Observed, memory: JobStatus, now: float) -> ReconcilePlan:
    """Return the draft of a plan: what scaling decides before the available capacity is known."""
    cpu = cpu_limits.raises(seen, memory, now)
    draft = ReconcilePlan((), memory, cpu=cpu)
    if "ps" in seen.standalone_types:
        proposal = scaling_proposal.propose_ps(seen, memory, now, cpu=cpu)
        return dataclasses.replace(draft, ps_proposal=proposal)
    outlook = scaling_proposal.propose(seen, memory.scaling, now)
    return dataclasses.replace(draft, proposal=outlook)


def plan(draft: ReconcilePlan, seen: Observed, now: float, rate: RequeueIntervals) -> ReconcilePlan:
    """Return what to do about a job, which has the capacity that the draft's proposal needs."""
    made = draft
    for extend in POLICIES:
        made = extend(made, seen, now)
    written = status_annotation.read(seen.job)
    every = rate.write_seconds(seen.policy.window_seconds)
    for effect in made.effects:
        if isinstance(effect, PatchJob):
            written = dataclasses.replace(effect.status, written_at=now)
    if made.status.needs_write(written, now, every):
        made = made.with_effects(PatchJob(made.status))
    return made


def next_delay(
    made: ReconcilePlan, seen: Observed, now: float, rate: RequeueIntervals
) -> float | None:
    """Seconds until the next tick of the job; None if only a change calls for one."""
    if seen.job.suspended or seen.job.deleting:
        return suspend_cycle.delay(made, seen)
    usual = usual_delay(seen, rate, moving=made.status.scaling.move is not None)
    waits = (
        lost_nodes.delay(seen, now),
        absent_pods.delay(seen),
        pending_pods.delay(seen, now),
        memory_limits.delay(seen),
        node_exclusion.delay(seen, made.status, now),
        suspend_policy.delay(made, seen, now),
        pipeline_lease.delay(made, seen, now),
    )
    sooner = [wait for wait in waits if wait is not None]
    return max(min((usual, *sooner)), 0.5)


# -- when to look again ----------------------------------------------------------------------------

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
        """Return the time between two writes of the progress of a job with such windows."""
        return max(window, self.jobs / WRITES)


def usual_delay(observed: Observed, intervals: RequeueIntervals, *, moving: bool) -> float:
    """Return seconds until the next look at a job about which nothing else is to be done.

    It is ``moving`` while a change of its size is under way or on trial.
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
