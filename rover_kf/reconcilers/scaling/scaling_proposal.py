# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The scaling decision of a job, before the available capacity is known; pure.

``planner.propose`` computes it once a tick. Everything later uses it: the second observe step reads
what the change needs, other jobs see what this one gains, and ``scaling`` carries it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.api.jobs import ObservedJob, Pod
from rover_kf.api.samples import Throughput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.scaling.decide import decide
from rover_kf.scaling.decision_input import ScalingProposal
from rover_kf.scaling.policy import OFF, AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState


def propose(  # noqa: PLR0917 - what is seen, one after the other
    job: ObservedJob,
    pods: Sequence[Pod],
    status: CoordinatorStatus | None,
    policy: AutoscalingPolicy,
    previous: ScalingState,
    now: float,
) -> ScalingProposal | None:
    """The outlook; None where the job is not trained now, or nobody wants it scaled.

    Args:
        job: as observed.
        pods: of the job.
        status: its coordinator's, at the same time.
        policy: what its owner allows.
        previous: what its annotation has.
        now: Unix seconds.
    """
    ended = job.suspended or job.finished or job.deleting
    workers = "worker" in job.replicas and "ps" not in job.replicas  # with PS: ps_proposal
    if status is None or ended or not workers or policy.mode == OFF:
        return None
    here = _observation(job, pods, status, now)
    if previous.move is not None and not previous.move.changed_at:
        return ScalingProposal(here)
    return ScalingProposal(here, *decide(here, policy, previous, now=now))


def _observation(
    job: ObservedJob, pods: Sequence[Pod], status: CoordinatorStatus, now: float
) -> JobObservation:
    workers = job.replicas["worker"]
    lacking = [one for one in pods if one.replica_type == "worker" and one.unschedulable]
    trains = status.phase == "training" and status.nodes + len(lacking) == job.nodes
    # Windows are in the coordinator's clock, changes in ours: the two hosts' may differ.
    skew = now - status.now
    return JobObservation(
        replicas=workers,
        masters=job.nodes - workers,
        steady=status.phase == "training" and status.nodes == status.expected_nodes == job.nodes,
        windows=tuple(shift_window(window, skew) for window in status.windows),
        step=status.step,
        total_steps=status.total_steps,
        restart_seconds=status.restart_seconds,
        unschedulable=len(lacking) if trains else 0,
        # The newest: a pod that was made anew may find a node yet.
        unschedulable_seconds=now - max((one.unschedulable_since for one in lacking), default=now),
    )


def shift_window(window: Throughput, seconds: float) -> Throughput:
    """The window so many seconds later."""
    return dataclasses.replace(
        window, started_at=window.started_at + seconds, ended_at=window.ended_at + seconds
    )
