# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The suspend cycle: what a TFJob can be given while no pod of it runs alone; pure.

More cores where no pod can be resized, and another number of parameter servers, or of workers that
do not come and go. The Training Operator owns a TFJob's indices and fails a job that loses a pod,
so one cannot be replaced alone, and TF_CONFIG is fixed when a process begins. The job is suspended,
whose chief saves before all pods end, and goes on from storage once they are gone: the new ones
have what the template states. The mark in the job's annotation tells a cycle from a suspension that
is somebody's wish.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import (
    Observed,
    PatchJob,
    ReconcilePlan,
    resume_spec,
    suspend_spec,
)
from rover_kf.reconcilers.scaling import resize, scaling_proposal
from rover_kf.scaling.policy import AUTO
from rover_kf.scaling.scaling_state import Move

POLL_SECONDS = 1.0
"""Between two looks at pods that end."""
RESTART_SECONDS = 60.0
"""A cycle takes at least: all processes load TensorFlow again."""
WORTH = 4.0
"""Work left, in restarts, from which on a cycle pays: twice as many cores may halve it."""


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the job suspended for a change, or resumed with it when its pods are gone."""
    job, known = observed.job, plan.status
    if job.finished or job.deleting:
        return plan
    if not job.suspended:
        if known.cycle_started_at:  # somebody has resumed it before us
            plan = plan.with_status(cycle_started_at=0.0)
        return _start(plan, observed, now)
    if not known.cycle_started_at or observed.pods:
        return plan
    move = resize.pending_move(known)
    return (
        _resume(plan, observed, now)
        if move is None
        else _resume_with_change(plan, observed, move, now)
    )


def delay(plan: ReconcilePlan, observed: Observed) -> float | None:
    """Seconds until a suspended job is looked at again; None if only a change calls for it."""
    ended = observed.job.deleting or observed.job.finished
    return POLL_SECONDS if plan.status.cycle_started_at and not ended else None


def _start(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    if any(
        isinstance(effect, PatchJob) and effect.spec == suspend_spec(observed.job)
        for effect in plan.effects
    ):
        return plan  # for a reason that does not pass by itself
    if scaling_proposal.cycle_denial_reason(observed, plan.status):
        return plan
    move = resize.pending_move(plan.status)
    if move is not None:
        return _suspend(plan, observed, f"for {move.change}", now)
    if _is_due(plan, observed):
        pods = ", ".join(plan.cpu.behind)
        return _suspend(plan, observed, f"{pods} cannot be resized while it runs", now)
    return plan


def _is_due(plan: ReconcilePlan, observed: Observed) -> bool:
    """Whether pods have less than they shall, and beginning anew is the way and pays."""
    status = observed.status
    if observed.resizes or observed.replaceable or policy_source.cpu_raise_denial(observed.policy):
        return False
    if status is None or status.phase != "training" or not plan.cpu.behind:
        return False
    if status.total_steps is None:
        return True
    rate = plan.cpu.rate
    left = (status.total_steps - status.step) / rate if rate else 0.0
    return left > WORTH * max(status.restart_seconds, RESTART_SECONDS)


def _suspend(plan: ReconcilePlan, observed: Observed, why: str, now: float) -> ReconcilePlan:
    reason = (
        f"suspended: {why}; the job goes on by itself, from storage, once all pods are gone (step "
        f"{plan.status.durable_step} or later)"
    )
    memory = dataclasses.replace(plan.status, suspended=reason, cycle_started_at=now)
    event = Event(names.EVENT_SUSPENDED, reason, at=now)
    return plan.patch(memory, event, suspend_spec(observed.job))


def _resume(plan: ReconcilePlan, observed: Observed, now: float, more: str = "") -> ReconcilePlan:
    """As it is, which is more than it was where its template was changed."""
    known = plan.status
    memory = dataclasses.replace(known, cycle_started_at=0.0, suspended="")
    message = (
        f"its pods are gone after {now - known.cycle_started_at:.0f} s: new ones get what it states"
    )
    event = Event(names.EVENT_RESUMED, message + more, warning=bool(more), at=now)
    return plan.patch(memory, event, resume_spec(observed.job, {}))


def _resume_with_change(
    plan: ReconcilePlan, observed: Observed, move: Move, now: float
) -> ReconcilePlan:
    """With the numbers that it was suspended for, unless that may be no more."""
    refused = observed.rejection and f"the API server does not take that: {observed.rejection}"
    sizes = (move.origin_size, move.target_size)
    if observed.policy.mode != AUTO:
        refused = f"scaling.mode is {observed.policy.mode} by now"
    elif not refused and resize.requested_counts(observed.job) not in sizes:
        refused = "its numbers were changed meanwhile"
    if refused:
        scaling = dataclasses.replace(plan.status.scaling, move=None)
        ban = observed.policy.ban_seconds
        scaling = scaling.with_ban(move.target, ban, now, move.target_servers)
        plan = plan.with_status(scaling=scaling)
        return _resume(plan, observed, now, f"; without {move.change}: {refused}")
    known, decision = resize.complete_move(plan.status, now)
    memory = dataclasses.replace(known, cycle_started_at=0.0, suspended="")
    spent = now - plan.status.cycle_started_at
    message = f"its pods are gone after {spent:.0f} s: it goes on with {move.change}"
    event = Event(names.EVENT_RESUMED, message, at=now)
    plan = plan.patch(
        memory, event, resume_spec(observed.job, resize.target_replicas(observed.job, move))
    )
    return resize.emit_scaled(dataclasses.replace(plan, decision=decision), move, now)
