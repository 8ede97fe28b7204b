# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job as the others of its cluster count it: what it holds, lacks, wants, and gains; pure."""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.reconcilers import capacity
from rover_kf.reconcilers.plan import Observed, ReconcilePlan
from rover_kf.scaling.fair_sharing import CompetingJob, predict_rates, work_left

_ENDED = ("Succeeded", "Failed")
_MIN_SECONDS = 1.0
"""A pod may be without a node for a moment."""


def make_member(
    made: ReconcilePlan,
    observed: Observed,
    previous: CompetingJob | None,
    now: float,
    *,
    managed: bool,
) -> CompetingJob | None:
    """What the job is to others; None if it holds nothing and waits for nothing.

    Args:
        made: with what scaling makes of the job.
        observed: the job now.
        previous: what it was at the last look.
        now: Unix seconds.
        managed: whether its size may be changed; else it is what it asks for.

    Raises:
        ValueError: an amount of its template is no quantity.
    """
    job = observed.job
    ended = job.finished or job.suspended or job.deleting
    if job.key.kind != names.PYTORCHJOB or ended or "worker" not in job.replicas:
        return None
    move = made.status.scaling.move
    asked = job.replicas["worker"] if move is None else move.target
    workers = [pod for pod in observed.pods if pod.replica_type == "worker"]
    found = CompetingJob(
        name=str(job.key),
        namespace=job.key.namespace,
        requirements=capacity.pod_need(job),
        requested=asked,
        min_replicas=min(observed.policy.min, asked) if managed else asked,
        nodes=tuple(pod.node for pod in workers if pod.node and pod.phase not in _ENDED),
        pending_seconds=_pending_seconds(workers, now),
        weight=observed.policy.weight,
        restart_seconds=observed.policy.restart_prior_seconds,
    )
    if previous is not None and previous.requested == asked:
        found = dataclasses.replace(found, desired=previous.desired, bound=previous.bound)
    return _with_rates(found, made, observed, previous) if managed else found


def _pending_seconds(workers: list[Pod], now: float) -> float:
    since = min(
        (pod.unschedulable_since for pod in workers if pod.unschedulable and not pod.deleting),
        default=now,
    )
    return now - since if now - since >= _MIN_SECONDS else 0.0


def _with_rates(
    member: CompetingJob, made: ReconcilePlan, observed: Observed, previous: CompetingJob | None
) -> CompetingJob:
    """With what sizes bring it; learned anew only where a window was measured since."""
    status = observed.status
    if status is None or not status.windows or made.proposal is None:
        return member
    here, newest = made.proposal.current, status.windows[-1]
    member = dataclasses.replace(
        member,
        restart_seconds=status.restart_seconds or member.restart_seconds,
        rates_until=newest.ended_at,
        work=work_left(here),
    )
    if previous is not None and (previous.rates_until, previous.requested) == (
        newest.ended_at,
        member.requested,
    ):
        return dataclasses.replace(member, rates=previous.rates)
    return dataclasses.replace(member, rates=predict_rates(here, observed.policy, member.requested))
