# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""From a decision to effects: who may be scaled, in which order, what is told; pure.

The job's own replica count is the truth: whatever set it (we, a person, an autoscaler), the
coordinator is told to expect that many pods, except while a change of ours is on its way.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.api.samples import Throughput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.reconcilers.plan import Announce, Observed, Plan, Remember, Resize, Tell
from rover_kf.scaling import policy as policies
from rover_kf.scaling.decide import NOTHING_NEW, decide
from rover_kf.scaling.state import Move, Observation, ScalingState

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
OPERATOR = "kubeflow.org/training-operator"

DRAIN_SECONDS = 30.0
"""How long ranks that will go may take to save and leave before their pods are deleted."""

ABANDON_SECONDS = 300.0
"""How long a change waits for a coordinator that does not answer."""

ACTIVE = ("waiting", "training", "draining", "recovering")


def refusal(job: ObservedJob) -> str:
    """Why the job's replicas are not ours to change; empty if they are."""
    spec = job.manifest["spec"]
    elastic = spec.get("elasticPolicy") or {}
    if job.key.kind != names.PYTORCHJOB:
        return f"a {job.key.kind} fails when workers go; only PyTorchJobs are scaled while they run"
    if elastic.get("metrics"):
        return (
            "elasticPolicy.metrics makes an HPA that owns the replicas; remove it to let us scale"
        )
    if why := managed_elsewhere(job):
        return why
    if elastic and job.replicas.get("master"):
        return "it has both a Master and an elasticPolicy, whose sizes disagree; remove one of them"
    return ""


def managed_elsewhere(job: ObservedJob) -> str:
    """Why neither its size nor whether it runs is ours to change; empty if they are."""
    manager = (job.manifest["spec"].get("runPolicy") or {}).get("managedBy") or OPERATOR
    if KUEUE_LABEL in job.labels:
        return f"label {KUEUE_LABEL}: Kueue admitted it with this size; scaling would bypass quota"
    if manager != OPERATOR:
        return f"runPolicy.managedBy is {manager}; only {OPERATOR} acts on replicas here"
    return ""


def extend(plan: Plan, seen: Observed, now: float) -> Plan:
    """The plan with what scaling wants done at this look."""
    job = seen.job
    if seen.status is None or job.suspended or job.finished or job.deleting:
        return _without_coordinator(plan, seen, now)
    mode = seen.policy.mode
    why = refusal(job) if mode == policies.AUTO else ""
    if why:
        mode = policies.RECOMMEND
        plan = _tell_once(plan, f"refused:{why[:24]}", _refused(why, now))
    if "worker" not in job.replicas:
        return _follow(plan, seen)
    move = plan.status.scaling.move
    if move is not None and move.changed_at:
        plan = _tell_scaled(plan, move, now)
    elif move is not None:
        return _carry_on(plan, seen, move, now, allowed=mode == policies.AUTO)
    if mode == policies.OFF:
        return _follow(plan, seen)
    observation = _observation(job, seen.status, now)
    decision, state = decide(observation, seen.policy, plan.status.scaling, now=now)
    if decision.action == "stay":
        return _stay(plan, seen, decision, state, now)
    if mode == policies.RECOMMEND:
        return _recommend(_follow(plan, seen), decision, state, now)
    return _begin(plan, seen, decision, state, now)


def _without_coordinator(plan: Plan, seen: Observed, now: float) -> Plan:
    """Nothing is decided; a change that was only intended is dropped when it can no longer be."""
    if seen.job.suspended and seen.policy.mode == policies.AUTO:
        plan = _tell_once(plan, "refused:suspended", _refused("the job is suspended", now))
    move = plan.status.scaling.move
    if move is None:
        return plan
    gone = seen.job.finished or seen.job.suspended or seen.job.deleting
    late = not move.changed_at and now - move.decided_at > ABANDON_SECONDS
    return _abandoned(plan) if gone or late else plan


def _abandoned(plan: Plan) -> Plan:
    scaling = dataclasses.replace(plan.status.scaling, move=None)
    return dataclasses.replace(plan, status=dataclasses.replace(plan.status, scaling=scaling))


def _follow(plan: Plan, seen: Observed) -> Plan:
    """Let the coordinator expect what the job asks for."""
    status, nodes = seen.status, seen.job.nodes
    if status is None or status.phase not in ACTIVE or status.expected_nodes == nodes:
        return plan
    return plan.then(
        Announce(nodes, f"the job asks for {nodes} pods", must=False), status=plan.status
    )


def _stay(
    plan: Plan, seen: Observed, decision: ScaleDecision, state: ScalingState, now: float
) -> Plan:
    if decision.reason == NOTHING_NEW:
        return _follow(plan, seen)
    verified = plan.status.scaling.move
    plan = _decided(_follow(plan, seen), decision, state)
    if verified is None or state.move is not None or seen.job.replicas["worker"] != verified.target:
        return plan
    event = Event(names.EVENT_SCALE_VERIFIED, decision.reason, at=now)
    return _tell_once(plan, f"verified:{verified.decided_at:.3f}", event)


def _recommend(plan: Plan, decision: ScaleDecision, state: ScalingState, now: float) -> Plan:
    last = plan.status.decision
    plan = _decided(plan, decision, dataclasses.replace(state, move=None))
    if last is not None and (last.current, last.target) == (decision.current, decision.target):
        return plan
    message = f"would go to {decision.target} Worker replicas: {decision.reason}"
    event = Event(names.EVENT_SCALE_DECISION, message, at=now)
    return plan.then(Tell(event), status=plan.status)


def _begin(
    plan: Plan, seen: Observed, decision: ScaleDecision, state: ScalingState, now: float
) -> Plan:
    """Write the intention down before anything is done about it."""
    plan = _decided(plan, decision, state)
    plan = plan.then(Remember(plan.status), status=plan.status)
    move = state.move
    return plan if move is None else _carry_on(plan, seen, move, now, allowed=True)


def _carry_on(plan: Plan, seen: Observed, move: Move, now: float, *, allowed: bool) -> Plan:
    """Bring a change that is written down one step further; also after any crash."""
    job, status = seen.job, seen.status
    workers = job.replicas["worker"]
    late = now - move.decided_at > ABANDON_SECONDS
    if workers not in (move.origin, move.target) or not allowed or late:
        # Someone else set the replicas, or took the permission back: theirs is the last word.
        # Late: the coordinator has refused all the while.
        return _follow(_abandoned(plan), seen)
    name = names.EVENT_SCALE_ROLLED_BACK if move.rolls_back else names.EVENT_SCALE_DECISION
    event = Event(name, move.reason, warning=move.rolls_back, at=now)
    plan = _tell_once(plan, f"decided:{move.decided_at:.3f}", event)
    memory = plan.status
    nodes = move.target + job.nodes - workers
    if status is not None and status.expected_nodes != nodes:
        plan = plan.then(Announce(nodes, move.reason), status=memory)
    shrinks = move.target < move.origin
    drained = status is not None and status.nodes <= nodes
    if shrinks and not drained and now - move.decided_at < DRAIN_SECONDS:
        return plan
    decision = memory.decision
    if decision is not None and decision.target == move.target:
        decision = dataclasses.replace(decision, applied=True)
    changed = dataclasses.replace(
        memory, scaling=memory.scaling.with_change(now), decision=decision
    )
    if workers != move.target:
        plan = plan.then(Resize(move.target, changed), status=changed)
    plan = dataclasses.replace(plan, status=changed, decision=decision)
    return _tell_scaled(plan, move, now)


def _decided(plan: Plan, decision: ScaleDecision, state: ScalingState) -> Plan:
    status = dataclasses.replace(plan.status, decision=decision, scaling=state)
    return dataclasses.replace(plan, status=status, decision=decision)


def _tell_once(plan: Plan, key: str, event: Event) -> Plan:
    if plan.status.has_told(key):
        return plan
    return plan.then(Tell(event), status=plan.status.with_told(key))


def _tell_scaled(plan: Plan, move: Move, now: float) -> Plan:
    message = f"Worker replicas {move.origin} -> {move.target}"
    event = Event(names.EVENT_SCALED, message, at=now)
    return _tell_once(plan, f"scaled:{move.decided_at:.3f}", event)


def _refused(why: str, now: float) -> Event:
    return Event(names.EVENT_SCALE_REFUSED, f"replicas are left alone: {why}", at=now)


def _observation(job: ObservedJob, status: CoordinatorStatus, now: float) -> Observation:
    workers = job.replicas["worker"]
    # Windows are in the coordinator's clock, changes in ours: the two hosts' may differ.
    skew = now - status.now
    return Observation(
        replicas=workers,
        masters=job.nodes - workers,
        steady=status.phase == "training" and status.nodes == status.expected_nodes == job.nodes,
        windows=tuple(_shifted(window, skew) for window in status.windows),
        step=status.step,
        total_steps=status.total_steps,
        restart_seconds=status.restart_seconds,
    )


def _shifted(window: Throughput, seconds: float) -> Throughput:
    return dataclasses.replace(
        window, started_at=window.started_at + seconds, ended_at=window.ended_at + seconds
    )
