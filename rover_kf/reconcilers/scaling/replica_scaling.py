# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a job's size is ours to change, what is decided on it, and what bounds that; pure.

How a change is made is in ``resize``; what is decided with what is around the job, in
``rover_kf.scaling.scale_admission``, which the simulation calls, too. A change that there is no
room for gets an Event that names what it ended at.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import EmitJobEvent, Observed, ReconcilePlan
from rover_kf.reconcilers.scaling import resize
from rover_kf.scaling import policy as policies
from rover_kf.scaling.decide import NOTHING_NEW
from rover_kf.scaling.decision_input import STAY, ScalingProposal
from rover_kf.scaling.scale_admission import AdmissionInput, admit
from rover_kf.scaling.scaling_state import ScalingState


def external_autoscaler(observed: Observed) -> str:
    """Which other autoscaler has the job's size; empty if there is none that is known."""
    for other in observed.capacity.capacity.autoscalers if observed.capacity else ():
        if (other.kind, other.target) == (observed.job.key.kind, observed.job.key.name):
            return f"HorizontalPodAutoscaler {other.name} sets them; delete it to let us scale"
    return ""


def is_managed(observed: Observed) -> bool:
    """Whether the job's size is ours to change, as far as the job itself says."""
    return observed.policy.mode == policies.AUTO and not policy_source.refusal(observed.job)


def target_size(made: ReconcilePlan, observed: Observed) -> int | None:
    """The size that a job of ours would go to now, whatever there is room for; None: it stays."""
    decision = made.proposal.decision if made.proposal else None
    if decision is None or decision.action == STAY or not is_managed(observed):
        return None
    return decision.target


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what scaling wants done at this look."""
    job = observed.job
    if observed.status is None or job.suspended or job.finished or job.deleting:
        return _without_coordinator(plan, observed, now)
    mode = observed.policy.mode
    why = (
        policy_source.refusal(job) or external_autoscaler(observed) if mode == policies.AUTO else ""
    )
    if why:
        mode = policies.RECOMMEND
        plan = resize.emit_once(plan, f"refused:{why[:24]}", make_bounded_event(why, now))
    if "worker" not in job.replicas:
        return resize.track(plan, observed)
    move = plan.status.scaling.move
    if move is not None and move.changed_at:
        plan = resize.emit_scaled(plan, move, now)
    elif move is not None:
        return resize.continue_(plan, observed, move, now, allowed=mode == policies.AUTO)
    if plan.proposal is None:
        return resize.track(plan, observed)
    return _decide(plan, observed, plan.proposal, now, mode)


def _decide(
    plan: ReconcilePlan, observed: Observed, outlook: ScalingProposal, now: float, mode: str
) -> ReconcilePlan:
    memory, here = plan.status.scaling, outlook.current
    decision, state = outlook.decision, outlook.state
    if decision is None:
        return resize.track(plan, observed)
    since = plan.cpu.settling  # a raise of this tick included
    if since is not None and decision.target > decision.current:
        return _keep_size(plan, observed, _after_cpu_raise(decision, since), memory, now)
    if mode != policies.AUTO:
        plan = dataclasses.replace(plan, desired_replicas=0)
        if decision.action == STAY:
            return _keep_size(plan, observed, decision, state, now)
        decision = dataclasses.replace(decision, bound=external_autoscaler(observed))
        return _recommend(resize.track(plan, observed), decision, state, now)
    look = AdmissionInput(here, observed.policy, memory, observed.capacity, observed.rejection)
    verdict = admit(look, decision, state, now=now)
    if verdict.desired is not None:
        plan = dataclasses.replace(plan, desired_replicas=verdict.desired, limited_by=verdict.bound)
    if verdict.decision.action != STAY:
        return resize.start(plan, observed, verdict.decision, verdict.state, now)
    plan = _keep_size(plan, observed, verdict.decision, verdict.state, now)
    if not verdict.denial_reason:
        return plan
    key = f"bound:{here.replicas}:{verdict.limit_reason[:28]}"
    return resize.emit_once(plan, key, make_bounded_event(verdict.denial_reason, now))


def _after_cpu_raise(decision: ScaleDecision, since: float) -> ScaleDecision:
    reason = (
        f"the CPU limit was raised {since:.0f} s ago: what that brings is measured before "
        f"{decision.target} replicas are gone to; {decision.reason}"
    )
    return dataclasses.replace(
        decision, action=STAY, target=decision.current, predicted=decision.measured, reason=reason
    )


def _without_coordinator(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """Nothing is decided; a change that was only intended is dropped when it can no longer be."""
    if observed.policy.mode == policies.AUTO and not observed.job.finished:
        suspended = "the job is suspended" if observed.job.suspended else ""
        if why := policy_source.refusal(observed.job) or suspended:
            plan = resize.emit_once(plan, f"refused:{why[:24]}", make_bounded_event(why, now))
    move = plan.status.scaling.move
    if move is None:
        return plan
    gone = observed.job.finished or observed.job.suspended or observed.job.deleting
    late = not move.changed_at and now - move.decided_at > resize.ABANDON_SECONDS
    return resize.abort(plan) if gone or late else plan


def _keep_size(
    plan: ReconcilePlan,
    observed: Observed,
    decision: ScaleDecision,
    state: ScalingState,
    now: float,
) -> ReconcilePlan:
    if decision.reason == NOTHING_NEW:
        return resize.track(plan, observed)
    verified = plan.status.scaling.move
    plan = resize.record_decision(resize.track(plan, observed), decision, state)
    if (
        verified is None
        or state.move is not None
        or observed.job.replicas["worker"] != verified.target
    ):
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return resize.emit_once(plan, f"verified:{verified.decided_at:.3f}", event)


def _recommend(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState, now: float
) -> ReconcilePlan:
    last = plan.status.decision
    plan = resize.record_decision(plan, decision, dataclasses.replace(state, move=None))
    if last is not None and (last.current, last.target) == (decision.current, decision.target):
        return plan
    message = f"would go to {decision.target} Worker replicas: {decision.reason}"
    event = Event(names.EVENT_SCALE_DECISION, message, at=now)
    return plan.with_effects(EmitJobEvent(event), status=plan.status)


def make_bounded_event(reason: str, now: float) -> Event:
    """That its size stays, and why."""
    return Event(names.EVENT_SCALE_REFUSED, f"replicas are left alone: {reason}", at=now)
