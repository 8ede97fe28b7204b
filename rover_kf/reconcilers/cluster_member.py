# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job as the others of its cluster count it: what it holds, lacks, wants, and gains; pure."""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.reconcilers import capacity
from rover_kf.reconcilers.plan import Observed, Plan
from rover_kf.scaling.fair_sharing import Member, gains, work_left

_ENDED = ("Succeeded", "Failed")
_LEAST_SECONDS = 1.0
"""A pod may be without a node for a moment."""


def member(
    made: Plan, seen: Observed, known: Member | None, now: float, *, ours: bool
) -> Member | None:
    """What the job is to others; None if it holds nothing and waits for nothing.

    Args:
        made: with what scaling makes of the job.
        seen: the job now.
        known: what it was at the last look.
        now: Unix seconds.
        ours: whether its size may be changed; else it is what it asks for.

    Raises:
        ValueError: an amount of its template is no quantity.
    """
    job = seen.job
    ended = job.finished or job.suspended or job.deleting
    if job.key.kind != names.PYTORCHJOB or ended or "worker" not in job.replicas:
        return None
    move = made.status.scaling.move
    asked = job.replicas["worker"] if move is None else move.target
    workers = [pod for pod in seen.pods if pod.replica_type == "worker"]
    found = Member(
        name=str(job.key),
        namespace=job.key.namespace,
        need=capacity.need(job),
        asked=asked,
        fewest=min(seen.policy.min, asked) if ours else asked,
        places=tuple(pod.node for pod in workers if pod.node and pod.phase not in _ENDED),
        lacking_seconds=_lacking(workers, now),
        weight=seen.policy.weight,
        restart_seconds=seen.policy.restart_prior_seconds,
    )
    if known is not None and known.asked == asked:
        found = dataclasses.replace(found, wants=known.wants, bound=known.bound)
    return _with_rates(found, made, seen, known) if ours else found


def _lacking(workers: list[Pod], now: float) -> float:
    since = min(
        (pod.unplaced_since for pod in workers if pod.unplaced and not pod.deleting), default=now
    )
    return now - since if now - since >= _LEAST_SECONDS else 0.0


def _with_rates(found: Member, made: Plan, seen: Observed, known: Member | None) -> Member:
    """With what sizes bring it; learned anew only where a window was measured since."""
    status = seen.status
    if status is None or not status.windows or made.proposal is None:
        return found
    here, newest = made.proposal.here, status.windows[-1]
    found = dataclasses.replace(
        found,
        restart_seconds=status.restart_seconds or found.restart_seconds,
        known_until=newest.ended_at,
        work=work_left(here),
    )
    if known is not None and (known.known_until, known.asked) == (newest.ended_at, found.asked):
        return dataclasses.replace(found, rates=known.rates)
    return dataclasses.replace(found, rates=gains(here, seen.policy, found.asked))
