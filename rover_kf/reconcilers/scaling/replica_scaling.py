# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a job's size is ours to change, what is decided on it, and what bounds that; pure.

How a change is made is in ``resize``; what is decided with what is around the job, in
``rover_kf.scaling.scale_admission``, which the simulation calls, too. A change that there is no
room for gets an Event that names what it ended at. Workers and parameter servers of a TFJob follow
rules of their own (``_apply_ps``).
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import EmitJobEvent, Observed, ReconcilePlan
from rover_kf.reconcilers.scaling import resize
from rover_kf.scaling import headroom, ps_decide
from rover_kf.scaling.decision_input import NOTHING_NEW, SCALE, STAY, ScalingProposal
from rover_kf.scaling.policy import AUTO, RECOMMEND
from rover_kf.scaling.ps_decide import PsProposal
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
    return observed.policy.mode == AUTO and not policy_source.refusal(observed.job)


def target_change(made: ReconcilePlan, observed: Observed) -> ScaleDecision | None:
    """The change that a job of ours would make now, whatever there is room for; None: none."""
    proposal = made.ps_proposal or made.proposal
    decision = proposal.decision if proposal else None
    if decision is None or decision.action == STAY or not is_managed(observed):
        return None
    return decision


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what scaling wants done at this look."""
    if "ps" in observed.standalone_types:
        return _apply_ps(plan, observed, now)
    job = observed.job
    if observed.status is None or job.inactive:
        return _without_coordinator(plan, observed, now)
    plan, mode = _permitted_mode(plan, observed, now)
    if "worker" not in job.replicas:
        return resize.track(plan, observed)
    move = plan.status.scaling.move
    if move is not None and move.changed_at:
        plan = resize.emit_scaled(plan, move, now)
    elif move is not None:
        return resize.continue_(plan, observed, move, now, allowed=mode == AUTO)
    if plan.proposal is None:
        return resize.track(plan, observed)
    return _decide(plan, observed, plan.proposal, now, mode)


def _permitted_mode(
    plan: ReconcilePlan, observed: Observed, now: float
) -> tuple[ReconcilePlan, str]:
    """The mode that the policy has, or advice alone where another manager owns the size."""
    mode, why = observed.policy.mode, ""
    if mode == AUTO:
        why = policy_source.refusal(observed.job) or external_autoscaler(observed)
    if not why:
        return plan, mode
    return plan.emit_once(f"refused:{why[:24]}", _make_bounded_event(why, now)), RECOMMEND


def _decide(
    plan: ReconcilePlan, observed: Observed, outlook: ScalingProposal, now: float, mode: str
) -> ReconcilePlan:
    memory, here = plan.status.scaling, outlook.current
    decision, state = outlook.decision, outlook.state
    if decision is None:
        return resize.track(plan, observed)
    since = plan.cpu.settling  # a raise of this tick included
    if since is not None and decision.target > decision.current:
        reason = (
            f"the CPU limit was raised {since:.0f} s ago: what that brings is measured before "
            f"{decision.target} replicas are gone to; {decision.reason}"
        )
        waits = _stay_instead(decision, reason)
        return _keep_size(resize.track(plan, observed), waits, memory, now)
    if mode != AUTO:
        plan = dataclasses.replace(resize.track(plan, observed), desired_replicas=0)
        message = f"would go to {decision.target} Worker replicas: {decision.reason}"
        return _recommend(plan, observed, outlook, message, now)
    look = AdmissionInput(here, observed.policy, memory, observed.capacity, observed.rejection)
    verdict = admit(look, decision, state, now=now)
    if verdict.desired is not None:
        plan = dataclasses.replace(plan, desired_replicas=verdict.desired, limited_by=verdict.bound)
    if verdict.decision.action != STAY:
        return resize.start(plan, observed, verdict.decision, verdict.state, now)
    plan = _keep_size(resize.track(plan, observed), verdict.decision, verdict.state, now)
    if not verdict.denial_reason:
        return plan
    key = f"bound:{here.replicas}:{verdict.limit_reason[:28]}"
    return plan.emit_once(key, _make_bounded_event(verdict.denial_reason, now))


def _without_coordinator(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """Nothing is decided; a change that was only intended is dropped when it can no longer be."""
    if observed.policy.mode == AUTO and not observed.job.finished:
        suspended = "the job is suspended" if observed.job.suspended else ""
        if why := policy_source.refusal(observed.job) or suspended:
            plan = plan.emit_once(f"refused:{why[:24]}", _make_bounded_event(why, now))
    move = plan.status.scaling.move
    if move is None:
        return plan
    late = not move.changed_at and now - move.decided_at > resize.ABANDON_SECONDS
    return resize.abort(plan) if observed.job.inactive or late else plan


# -- parameter servers -----------------------------------------------------------------------------


def growing_type(decision: ScaleDecision) -> str:
    """Replica type of which a change makes more pods; empty: of none."""
    if decision.target > decision.current:
        return "worker"
    return "ps" if decision.target_servers > decision.servers else ""


def needs_cycle(made: ReconcilePlan) -> bool:
    """Whether the change under consideration ends all pods."""
    move = made.ps_proposal.state.move if made.ps_proposal else None
    return move is not None and move.cycles


def is_settled(made: ReconcilePlan, observed: Observed) -> bool:
    """Whether what the job states is at work, so that its windows are of that setup."""
    known = made.status.scaling.settled
    if made.ps_proposal is None or known is None:
        return True
    return (known.workers, known.servers) == resize.requested_counts(observed.job)


def _apply_ps(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what becomes of the job's workers and servers at this look.

    What is decided meets the room that there is, is told or done, and is written down before it is
    done.
    """
    job, known = observed.job, plan.status
    move = known.scaling.move
    if job.inactive:
        cycling = job.suspended and known.cycle_started_at and not job.deleting
        ours = cycling and resize.pending_move(known)
        return plan if move is None or ours else resize.abort(plan)
    plan, mode = resize.track(plan, observed), observed.policy.mode
    if plan.ps_proposal is not None or move is not None:
        plan, mode = _permitted_mode(plan, observed, now)
    if move is not None and not move.changed_at:
        return resize.continue_(plan, observed, move, now, allowed=mode == AUTO)
    if move is not None:
        plan = resize.emit_scaled(plan, move, now)
    proposal = plan.ps_proposal
    if proposal is None:
        return plan
    if mode == AUTO:
        return _execute_ps(plan, observed, proposal, now)
    message = f"would change {proposal.decision.reason}"
    return _recommend(plan, observed, proposal, message, now)


def _execute_ps(
    plan: ReconcilePlan, observed: Observed, proposal: PsProposal, now: float
) -> ReconcilePlan:
    decision, state, why = _fit_capacity(plan, observed, proposal, now)
    if decision.action == SCALE and plan.cpu.settling is not None:
        # Raised in this tick: the proposal was made before. More cores come before more replicas.
        reason = f"CPU limits are raised: what that brings is measured before {decision.change}"
        waits = _stay_instead(decision, reason)
        return _keep_size(plan, waits, dataclasses.replace(state, move=None), now)
    if decision.action != STAY:
        return resize.start(plan, observed, decision, state, now)
    plan = _keep_size(plan, decision, state, now)
    if not why:
        return plan
    key = f"bound:{decision.current}:{decision.servers}:{why[:28]}"
    return plan.emit_once(key, _make_bounded_event(why, now))


def _fit_capacity(
    plan: ReconcilePlan, observed: Observed, proposal: PsProposal, now: float
) -> tuple[ScaleDecision, ScalingState, str]:
    """What is decided with the room that there is, and what it ends at."""
    decision, state = proposal.decision, proposal.state
    kind = growing_type(decision)
    if decision.action == STAY or (not kind and not observed.rejection):
        return decision, state, ""
    workers, servers = decision.current_size
    left, why = math.inf, ""
    if observed.rejection:
        left, why = 0, f"the API server would not take it: {observed.rejection}"
    elif observed.capacity is not None:
        around = observed.capacity
        more_pods = headroom.pod_headroom(around.requirements, around.capacity)
        left, why = more_pods.count, more_pods.reason
    asked = decision.target - workers + decision.target_servers - servers
    if asked <= left:
        return decision, state, ""
    policy = observed.policy
    if kind == "ps":
        policy = dataclasses.replace(policy, max_servers=int(servers + left))
    else:
        policy = dataclasses.replace(policy, max=int(workers + left))
    less, state = ps_decide.decide(proposal.current, policy, plan.status.scaling, now=now)
    less = dataclasses.replace(less, bound=why)
    if less.action != STAY:
        return less, state, ""
    why = f"{decision.change} would pay, and {why}"
    return dataclasses.replace(less, reason=f"{why}; {decision.reason}"), state, why


# -- what both have --------------------------------------------------------------------------------


def _stay_instead(decision: ScaleDecision, reason: str) -> ScaleDecision:
    return dataclasses.replace(
        decision,
        action=STAY,
        target=decision.current,
        target_servers=decision.servers,
        predicted=decision.measured,
        reason=reason,
    )


def _keep_size(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState, now: float
) -> ReconcilePlan:
    tried = plan.status.scaling.move
    if decision.reason == NOTHING_NEW:
        return plan.with_status(scaling=state)
    plan = resize.record_decision(plan, decision, state)
    if tried is None or state.move is not None or decision.current_size != tried.target_size:
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return plan.emit_once(f"verified:{tried.decided_at:.3f}", event)


def _recommend(
    plan: ReconcilePlan,
    observed: Observed,
    proposal: ScalingProposal | PsProposal,
    message: str,
    now: float,
) -> ReconcilePlan:
    """What would be done, once for each change."""
    decision, last = proposal.decision, plan.status.decision
    if decision is None:
        return plan
    if decision.action == STAY:
        return _keep_size(plan, decision, proposal.state, now)
    decision = dataclasses.replace(decision, bound=external_autoscaler(observed))
    state = dataclasses.replace(proposal.state, move=None)
    plan = resize.record_decision(plan, decision, state)
    sizes = (decision.current_size, decision.target_size)
    if last is not None and (last.current_size, last.target_size) == sizes:
        return plan
    return plan.with_effects(EmitJobEvent(Event(names.EVENT_SCALE_DECISION, message, at=now)))


def _make_bounded_event(reason: str, now: float) -> Event:
    return Event(names.EVENT_SCALE_REFUSED, f"replicas are left alone: {reason}", at=now)
