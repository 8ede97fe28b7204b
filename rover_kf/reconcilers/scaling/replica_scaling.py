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
from rover_kf.reconcilers.plan import Observed, Plan, Tell
from rover_kf.reconcilers.scaling import resize
from rover_kf.scaling import policy as policies
from rover_kf.scaling.decide import NOTHING_NEW
from rover_kf.scaling.decision_input import STAY
from rover_kf.scaling.proposal import Outlook
from rover_kf.scaling.scale_admission import Look, judge
from rover_kf.scaling.scaling_state import ScalingState


def autoscaled(seen: Observed) -> str:
    """Which other autoscaler has the job's size; empty if there is none that is known."""
    for other in seen.view.around.autoscalers if seen.view else ():
        if (other.kind, other.target) == (seen.job.key.kind, seen.job.key.name):
            return f"HorizontalPodAutoscaler {other.name} sets them; delete it to let us scale"
    return ""


def is_ours(seen: Observed) -> bool:
    """Whether the job's size is ours to change, as far as the job itself says."""
    return seen.policy.mode == policies.AUTO and not policy_source.refusal(seen.job)


def wanted(made: Plan, seen: Observed) -> int | None:
    """The size that a job of ours would go to now, whatever there is room for; None: it stays."""
    decision = made.proposal.decision if made.proposal else None
    if decision is None or decision.action == STAY or not is_ours(seen):
        return None
    return decision.target


def extend(plan: Plan, seen: Observed, now: float) -> Plan:
    """The plan with what scaling wants done at this look."""
    job = seen.job
    if seen.status is None or job.suspended or job.finished or job.deleting:
        return _without_coordinator(plan, seen, now)
    mode = seen.policy.mode
    why = policy_source.refusal(job) or autoscaled(seen) if mode == policies.AUTO else ""
    if why:
        mode = policies.RECOMMEND
        plan = resize.tell_once(plan, f"refused:{why[:24]}", refused(why, now))
    if "worker" not in job.replicas:
        return resize.follow(plan, seen)
    move = plan.status.scaling.move
    if move is not None and move.changed_at:
        plan = resize.tell_scaled(plan, move, now)
    elif move is not None:
        return resize.carry_on(plan, seen, move, now, allowed=mode == policies.AUTO)
    if plan.proposal is None:
        return resize.follow(plan, seen)
    return _decide(plan, seen, plan.proposal, now, mode)


def _decide(plan: Plan, seen: Observed, outlook: Outlook, now: float, mode: str) -> Plan:
    memory, here = plan.status.scaling, outlook.here
    decision, state = outlook.decision, outlook.state
    if decision is None:
        return resize.follow(plan, seen)
    since = plan.cpu.settling  # a raise of this tick included
    if since is not None and decision.target > decision.current:
        return _stay(plan, seen, _after_cores(decision, since), memory, now)
    if mode != policies.AUTO:
        plan = dataclasses.replace(plan, wants=0)
        if decision.action == STAY:
            return _stay(plan, seen, decision, state, now)
        decision = dataclasses.replace(decision, bound=autoscaled(seen))
        return _recommend(resize.follow(plan, seen), decision, state, now)
    look = Look(here, seen.policy, memory, seen.view, seen.refused)
    verdict = judge(look, decision, state, now=now)
    if verdict.wants is not None:
        plan = dataclasses.replace(plan, wants=verdict.wants, bound=verdict.bound)
    if verdict.decision.action != STAY:
        return resize.begin(plan, seen, verdict.decision, verdict.state, now)
    plan = _stay(plan, seen, verdict.decision, verdict.state, now)
    if not verdict.refusal:
        return plan
    key = f"bound:{here.replicas}:{verdict.ends_at[:28]}"
    return resize.tell_once(plan, key, refused(verdict.refusal, now))


def _after_cores(decision: ScaleDecision, since: float) -> ScaleDecision:
    reason = (
        f"the CPU limit was raised {since:.0f} s ago: what that brings is measured before "
        f"{decision.target} replicas are gone to; {decision.reason}"
    )
    return dataclasses.replace(
        decision, action=STAY, target=decision.current, predicted=decision.measured, reason=reason
    )


def _without_coordinator(plan: Plan, seen: Observed, now: float) -> Plan:
    """Nothing is decided; a change that was only intended is dropped when it can no longer be."""
    if seen.policy.mode == policies.AUTO and not seen.job.finished:
        suspended = "the job is suspended" if seen.job.suspended else ""
        if why := policy_source.refusal(seen.job) or suspended:
            plan = resize.tell_once(plan, f"refused:{why[:24]}", refused(why, now))
    move = plan.status.scaling.move
    if move is None:
        return plan
    gone = seen.job.finished or seen.job.suspended or seen.job.deleting
    late = not move.changed_at and now - move.decided_at > resize.ABANDON_SECONDS
    return resize.abandoned(plan) if gone or late else plan


def _stay(
    plan: Plan, seen: Observed, decision: ScaleDecision, state: ScalingState, now: float
) -> Plan:
    if decision.reason == NOTHING_NEW:
        return resize.follow(plan, seen)
    verified = plan.status.scaling.move
    plan = resize.decided(resize.follow(plan, seen), decision, state)
    if verified is None or state.move is not None or seen.job.replicas["worker"] != verified.target:
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return resize.tell_once(plan, f"verified:{verified.decided_at:.3f}", event)


def _recommend(plan: Plan, decision: ScaleDecision, state: ScalingState, now: float) -> Plan:
    last = plan.status.decision
    plan = resize.decided(plan, decision, dataclasses.replace(state, move=None))
    if last is not None and (last.current, last.target) == (decision.current, decision.target):
        return plan
    message = f"would go to {decision.target} Worker replicas: {decision.reason}"
    event = Event(names.EVENT_SCALE_DECISION, message, at=now)
    return plan.then(Tell(event), status=plan.status)


def refused(why: str, now: float) -> Event:
    """That its size stays, and why."""
    return Event(names.EVENT_SCALE_REFUSED, f"replicas are left alone: {why}", at=now)
