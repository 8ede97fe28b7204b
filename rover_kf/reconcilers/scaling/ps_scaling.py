# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers and parameter servers of a TFJob, as many as pay while it runs; pure.

What is decided meets the room that there is, is told or done, and is written down before it is
done. How a change is made is in ``ps_resize``.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import EmitJobEvent, Observed, ReconcilePlan
from rover_kf.reconcilers.scaling import ps_resize, replica_scaling, resize
from rover_kf.scaling import headroom
from rover_kf.scaling.decide import NOTHING_NEW
from rover_kf.scaling.decision_input import SCALE, STAY
from rover_kf.scaling.policy import AUTO, RECOMMEND
from rover_kf.scaling.ps_decide import decide
from rover_kf.scaling.ps_decision_input import PsProposal
from rover_kf.scaling.scaling_state import ScalingState


def target_change(made: ReconcilePlan, observed: Observed) -> ScaleDecision | None:
    """The change that a job of ours would make now, whatever there is room for; None: none."""
    found = made.ps_proposal
    if found is None or found.decision.action == STAY or not replica_scaling.is_managed(observed):
        return None
    return found.decision


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
    return (known.workers, known.servers) == ps_resize.requested_counts(observed.job)


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what becomes of the job's workers and servers at this look."""
    job, known = observed.job, plan.status
    move = known.scaling.move
    if job.finished or job.deleting or job.suspended:
        ours = (
            job.suspended
            and known.cycle_started_at
            and not job.deleting
            and ps_resize.pending_move(known)
        )
        return plan if move is None or ours else resize.abort(plan)
    plan = resize.track(plan, observed)
    mode = observed.policy.mode
    why = (
        policy_source.refusal(job) or replica_scaling.external_autoscaler(observed)
        if mode == AUTO
        else ""
    )
    if why and (plan.ps_proposal is not None or move is not None):
        mode = RECOMMEND
        plan = resize.emit_once(
            plan, f"refused:{why[:24]}", replica_scaling.make_bounded_event(why, now)
        )
    if move is not None and not move.changed_at:
        return ps_resize.continue_(plan, observed, move, now, allowed=mode == AUTO)
    if move is not None:
        plan = ps_resize.emit_scaled(plan, move, now)
    if plan.ps_proposal is None:
        return plan
    if mode == AUTO:
        return _execute(plan, observed, plan.ps_proposal, now)
    return _recommend(plan, observed, plan.ps_proposal, now)


def _execute(
    plan: ReconcilePlan, observed: Observed, proposal: PsProposal, now: float
) -> ReconcilePlan:
    decision, state, why = _fit_capacity(plan, observed, proposal, now)
    if decision.action == SCALE and plan.cpu.settling is not None:
        # Raised in this tick: the proposal was made before.
        return _wait_for_cpu_raise(plan, decision, state, now)
    if decision.action != STAY:
        return ps_resize.start(plan, observed, decision, state, now)
    plan = _keep_size(plan, decision, state, now)
    if not why:
        return plan
    key = f"bound:{decision.current}:{decision.servers}:{why[:28]}"
    return resize.emit_once(plan, key, replica_scaling.make_bounded_event(why, now))


def _wait_for_cpu_raise(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState, now: float
) -> ReconcilePlan:
    """More cores come before more replicas."""
    waits = dataclasses.replace(
        decision,
        action=STAY,
        target=decision.current,
        target_servers=decision.servers,
        predicted=decision.measured,
        reason=f"CPU limits are raised: what that brings is measured before {decision.change}",
    )
    return _keep_size(plan, waits, dataclasses.replace(state, move=None), now)


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
        more_pods = headroom.pod_headroom(
            observed.capacity.requirements, observed.capacity.capacity
        )
        left, why = more_pods.count, more_pods.reason
    asked = decision.target - workers + decision.target_servers - servers
    if asked <= left:
        return decision, state, ""
    policy = observed.policy
    if kind == "ps":
        policy = dataclasses.replace(policy, max_servers=int(servers + left))
    else:
        policy = dataclasses.replace(policy, max=int(workers + left))
    less, state = decide(proposal.current, policy, plan.status.scaling, now=now)
    less = dataclasses.replace(less, bound=why)
    if less.action != STAY:
        return less, state, ""
    why = f"{decision.change} would pay, and {why}"
    return dataclasses.replace(less, reason=f"{why}; {decision.reason}"), state, why


def _recommend(
    plan: ReconcilePlan, observed: Observed, proposal: PsProposal, now: float
) -> ReconcilePlan:
    """What would be done, once for each change."""
    decision, last = proposal.decision, plan.status.decision
    if decision.action == STAY:
        return _keep_size(plan, decision, proposal.state, now)
    decision = dataclasses.replace(decision, bound=replica_scaling.external_autoscaler(observed))
    state = dataclasses.replace(proposal.state, move=None)
    plan = resize.record_decision(plan, decision, state)
    if last is not None and (last.current_size, last.target_size) == (
        decision.current_size,
        decision.target_size,
    ):
        return plan
    event = Event(names.EVENT_SCALE_DECISION, f"would change {decision.reason}", at=now)
    return plan.with_effects(EmitJobEvent(event), status=plan.status)


def _keep_size(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState, now: float
) -> ReconcilePlan:
    tried = plan.status.scaling.move
    if decision.reason == NOTHING_NEW:
        return ps_resize.with_scaling_state(plan, state)
    plan = resize.record_decision(plan, decision, state)
    if tried is None or state.move is not None or decision.current_size != tried.target_size:
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return resize.emit_once(plan, f"verified:{tried.decided_at:.3f}", event)
