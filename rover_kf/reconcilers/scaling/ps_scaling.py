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
from rover_kf.reconcilers.plan import Observed, Plan, Tell
from rover_kf.reconcilers.scaling import ps_resize, replica_scaling, resize
from rover_kf.scaling import headroom
from rover_kf.scaling.decide import NOTHING_NEW
from rover_kf.scaling.decision_input import SCALE, STAY
from rover_kf.scaling.policy import AUTO, RECOMMEND
from rover_kf.scaling.proposal import ServerOutlook
from rover_kf.scaling.ps_decide import decide
from rover_kf.scaling.scaling_state import ScalingState


def wanted(made: Plan, seen: Observed) -> ScaleDecision | None:
    """The change that a job of ours would make now, whatever there is room for; None: none."""
    found = made.ps_proposal
    if found is None or found.decision.action == STAY or not replica_scaling.is_ours(seen):
        return None
    return found.decision


def more(decision: ScaleDecision) -> str:
    """Replica type of which a change makes more pods; empty: of none."""
    if decision.target > decision.current:
        return "worker"
    return "ps" if decision.target_servers > decision.servers else ""


def through_cycle(made: Plan) -> bool:
    """Whether the change under consideration ends all pods."""
    move = made.ps_proposal.state.move if made.ps_proposal else None
    return move is not None and move.cycles


def settled(made: Plan, seen: Observed) -> bool:
    """Whether what the job states is at work, so that its windows are of that setup."""
    known = made.status.scaling.settled
    if made.ps_proposal is None or known is None:
        return True
    return (known.workers, known.servers) == ps_resize.numbers_of(seen.job)


def extend(plan: Plan, seen: Observed, now: float) -> Plan:
    """The plan with what becomes of the job's workers and servers at this look."""
    job, known = seen.job, plan.status
    move = known.scaling.move
    if job.finished or job.deleting or job.suspended:
        ours = job.suspended and known.cycle and not job.deleting and ps_resize.pending(known)
        return plan if move is None or ours else resize.abandoned(plan)
    plan = resize.follow(plan, seen)
    mode = seen.policy.mode
    why = policy_source.refusal(job) or replica_scaling.autoscaled(seen) if mode == AUTO else ""
    if why and (plan.ps_proposal is not None or move is not None):
        mode = RECOMMEND
        plan = resize.tell_once(plan, f"refused:{why[:24]}", replica_scaling.refused(why, now))
    if move is not None and not move.changed_at:
        return ps_resize.carry_on(plan, seen, move, now, allowed=mode == AUTO)
    if move is not None:
        plan = ps_resize.tell_scaled(plan, move, now)
    if plan.ps_proposal is None:
        return plan
    if mode == AUTO:
        return _do(plan, seen, plan.ps_proposal, now)
    return _tell(plan, seen, plan.ps_proposal, now)


def _do(plan: Plan, seen: Observed, found: ServerOutlook, now: float) -> Plan:
    decision, state, why = _within_room(plan, seen, found, now)
    if decision.action == SCALE and plan.cpu.settling is not None:
        # Raised in this tick: the proposal was made before.
        return _tell_waiting(plan, decision, state, now)
    if decision.action != STAY:
        return ps_resize.begin(plan, seen, decision, state, now)
    plan = _stay(plan, decision, state, now)
    if not why:
        return plan
    key = f"bound:{decision.current}:{decision.servers}:{why[:28]}"
    return resize.tell_once(plan, key, replica_scaling.refused(why, now))


def _tell_waiting(plan: Plan, decision: ScaleDecision, state: ScalingState, now: float) -> Plan:
    """More cores come before more replicas."""
    waits = dataclasses.replace(
        decision,
        action=STAY,
        target=decision.current,
        target_servers=decision.servers,
        predicted=decision.measured,
        reason=f"CPU limits are raised: what that brings is measured before {decision.change}",
    )
    return _stay(plan, waits, dataclasses.replace(state, move=None), now)


def _within_room(
    plan: Plan, seen: Observed, found: ServerOutlook, now: float
) -> tuple[ScaleDecision, ScalingState, str]:
    """What is decided with the room that there is, and what it ends at."""
    decision, state = found.decision, found.state
    kind = more(decision)
    if decision.action == STAY or (not kind and not seen.refused):
        return decision, state, ""
    workers, servers = decision.here
    left, why = math.inf, ""
    if seen.refused:
        left, why = 0, f"the API server would not take it: {seen.refused}"
    elif seen.view is not None:
        more_pods = headroom.more_pods(seen.view.need, seen.view.around)
        left, why = more_pods.count, more_pods.why
    asked = decision.target - workers + decision.target_servers - servers
    if asked <= left:
        return decision, state, ""
    policy = seen.policy
    if kind == "ps":
        policy = dataclasses.replace(policy, most_servers=int(servers + left))
    else:
        policy = dataclasses.replace(policy, max=int(workers + left))
    less, state = decide(found.here, policy, plan.status.scaling, now=now)
    less = dataclasses.replace(less, bound=why)
    if less.action != STAY:
        return less, state, ""
    why = f"{decision.change} would pay, and {why}"
    return dataclasses.replace(less, reason=f"{why}; {decision.reason}"), state, why


def _tell(plan: Plan, seen: Observed, found: ServerOutlook, now: float) -> Plan:
    """What would be done, once for each change."""
    decision, last = found.decision, plan.status.decision
    if decision.action == STAY:
        return _stay(plan, decision, found.state, now)
    decision = dataclasses.replace(decision, bound=replica_scaling.autoscaled(seen))
    state = dataclasses.replace(found.state, move=None)
    plan = resize.decided(plan, decision, state)
    if last is not None and (last.here, last.there) == (decision.here, decision.there):
        return plan
    event = Event(names.EVENT_SCALE_DECISION, f"would change {decision.reason}", at=now)
    return plan.then(Tell(event), status=plan.status)


def _stay(plan: Plan, decision: ScaleDecision, state: ScalingState, now: float) -> Plan:
    tried = plan.status.scaling.move
    if decision.reason == NOTHING_NEW:
        return ps_resize.remembering(plan, state)
    plan = resize.decided(plan, decision, state)
    if tried is None or state.move is not None or decision.here != tried.there:
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return resize.tell_once(plan, f"verified:{tried.decided_at:.3f}", event)
