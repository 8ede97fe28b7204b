# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A change of replicas step by step: written down, announced, drained, made, told; pure.

The job's own replica count is the truth: whatever set it (we, a person, an autoscaler), the
coordinator is told to expect that many pods, except while a change of ours is on its way.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event
from rover_kf.reconcilers.plan import (
    AnnounceResize,
    EmitJobEvent,
    Observed,
    ReconcilePlan,
    Resize,
    WriteStatus,
)
from rover_kf.scaling.scaling_state import Move, ScalingState

DRAIN_SECONDS = 30.0
"""How long ranks that will go may take to save and leave before their pods are deleted."""

ABANDON_SECONDS = 300.0
"""How long a change waits for a coordinator that does not answer."""

ACTIVE = ("waiting", "training", "draining", "recovering")


def abort(plan: ReconcilePlan) -> ReconcilePlan:
    """The plan without the change that was intended."""
    scaling = dataclasses.replace(plan.status.scaling, move=None)
    return dataclasses.replace(plan, status=dataclasses.replace(plan.status, scaling=scaling))


def track(plan: ReconcilePlan, observed: Observed) -> ReconcilePlan:
    """Let the coordinator expect what the job asks for."""
    status, nodes = observed.status, observed.job.nodes
    if status is None or status.phase not in ACTIVE or status.expected_nodes == nodes:
        return plan
    return plan.with_effects(
        AnnounceResize(nodes, f"the job asks for {nodes} pods", required=False), status=plan.status
    )


def start(
    plan: ReconcilePlan,
    observed: Observed,
    decision: ScaleDecision,
    state: ScalingState,
    now: float,
) -> ReconcilePlan:
    """Write the intention down before anything is done about it."""
    plan = record_decision(plan, decision, state)
    plan = plan.with_effects(WriteStatus(plan.status), status=plan.status)
    move = state.move
    return plan if move is None else continue_(plan, observed, move, now, allowed=True)


def continue_(
    plan: ReconcilePlan, observed: Observed, move: Move, now: float, *, allowed: bool
) -> ReconcilePlan:
    """Bring a change that is written down one step further; also after any crash."""
    job, status = observed.job, observed.status
    workers = job.replicas["worker"]
    late = now - move.decided_at > ABANDON_SECONDS
    if workers not in (move.origin, move.target) or not allowed or late:
        # Someone else set the replicas, or took the permission back: theirs is the last word.
        # Late: the coordinator has refused all the while.
        return track(abort(plan), observed)
    name = names.EVENT_SCALE_ROLLED_BACK if move.rolls_back else names.EVENT_SCALE_DECISION
    event = Event(name, move.reason, warning=move.rolls_back, at=now)
    plan = emit_once(plan, f"decided:{move.decided_at:.3f}", event)
    memory = plan.status
    nodes = move.target + job.nodes - workers
    if status is not None and status.expected_nodes != nodes:
        plan = plan.with_effects(AnnounceResize(nodes, move.reason), status=memory)
    shrinks = move.target < move.origin
    drained = status is not None and status.nodes <= nodes
    if shrinks and not drained and now - move.decided_at < DRAIN_SECONDS:
        return plan
    decision = memory.decision
    if decision is not None and decision.target == move.target:
        decision = dataclasses.replace(decision, applied=True)
    if decision is not None:
        memory = memory.with_decision(decision)
    changed = dataclasses.replace(memory, scaling=memory.scaling.with_change(now))
    if workers != move.target:
        plan = plan.with_effects(Resize(move.target, changed), status=changed)
    plan = dataclasses.replace(plan, status=changed, decision=decision)
    return emit_scaled(plan, move, now)


def record_decision(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState
) -> ReconcilePlan:
    """The plan with a decision and the memory that goes with it."""
    status = dataclasses.replace(plan.status.with_decision(decision), scaling=state)
    return dataclasses.replace(plan, status=status, decision=decision)


def emit_once(plan: ReconcilePlan, key: str, event: Event) -> ReconcilePlan:
    """The plan with an Event that is told once under its key."""
    if plan.status.has_emitted(key):
        return plan
    return plan.with_effects(EmitJobEvent(event), status=plan.status.with_emitted(key))


def emit_scaled(plan: ReconcilePlan, move: Move, now: float) -> ReconcilePlan:
    """The plan with the Event of a change that was made."""
    message = f"Worker replicas {move.origin} -> {move.target}"
    event = Event(names.EVENT_SCALED, message, at=now)
    return emit_once(plan, f"scaled:{move.decided_at:.3f}", event)
