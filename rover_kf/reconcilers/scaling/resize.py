# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A change of replicas step by step: written down, announced, drained, made, told; pure.

The job's own replica count is the truth: whatever set it (we, a person, an autoscaler), the
coordinator is told to expect that many pods, except while a change of ours is on its way.

A TFJob with parameter servers changes live: written down, told, made in one patch with its trace.
Or through the suspend cycle: written down, told, the job suspended (by ``suspend_cycle``), its pods
awaited, then the numbers and the resumption in one patch. Whoever looks after a crash finds the
intention, the suspension with its mark, or the change.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.plan import (
    AnnounceResize,
    Observed,
    PatchJob,
    ReconcilePlan,
    worker_spec,
)
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.scaling_state import Move, ScalingState

DRAIN_SECONDS = 30.0
"""How long ranks that will go may take to save and leave before their pods are deleted."""

ABANDON_SECONDS = 300.0
"""How long a change waits for a coordinator that does not answer."""

ACTIVE = ("waiting", "training", "draining", "recovering")


def abort(plan: ReconcilePlan) -> ReconcilePlan:
    """The plan without the change that was intended."""
    return plan.with_status(scaling=dataclasses.replace(plan.status.scaling, move=None))


def track(plan: ReconcilePlan, observed: Observed) -> ReconcilePlan:
    """Let the coordinator expect what the job asks for."""
    status, nodes = observed.status, observed.job.nodes
    if status is None or status.phase not in ACTIVE or status.expected_nodes == nodes:
        return plan
    return plan.with_effects(
        AnnounceResize(nodes, f"the job asks for {nodes} pods", required=False)
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
    plan = plan.with_effects(PatchJob(plan.status))
    move = state.move
    return plan if move is None else continue_(plan, observed, move, now, allowed=True)


def continue_(
    plan: ReconcilePlan, observed: Observed, move: Move, now: float, *, allowed: bool
) -> ReconcilePlan:
    """Bring a change that is written down one step further; also after any crash."""
    with_servers = "ps" in observed.standalone_types
    numbers = requested_counts(observed.job)
    late = now - move.decided_at > ABANDON_SECONDS
    resumed = bool(plan.status.cycle_started_at)  # by somebody else, before all its pods were gone
    if numbers not in (move.origin_size, move.target_size) or not allowed or late or resumed:
        # Someone else set the replicas, or took the permission back: theirs is the last word.
        # Late: the coordinator has refused all the while.
        return abort(plan) if with_servers else track(abort(plan), observed)
    name = names.EVENT_SCALE_ROLLED_BACK if move.rolls_back else names.EVENT_SCALE_DECISION
    event = Event(name, move.reason, warning=move.rolls_back, at=now)
    plan = plan.emit_once(f"decided:{move.decided_at:.3f}", event)
    if with_servers:
        if move.cycles and numbers != move.target_size:
            return plan  # the cycle suspends it
        return _change(plan, observed, move, now)
    status, nodes = observed.status, move.target + observed.job.nodes - numbers[0]
    if status is not None and status.expected_nodes != nodes:
        plan = plan.with_effects(AnnounceResize(nodes, move.reason))
    drained = status is not None and status.nodes <= nodes
    if move.target < move.origin and not drained and now - move.decided_at < DRAIN_SECONDS:
        return plan
    return _change(plan, observed, move, now)


def _change(plan: ReconcilePlan, observed: Observed, move: Move, now: float) -> ReconcilePlan:
    changed, decision = complete_move(plan.status, now)
    if requested_counts(observed.job) != move.target_size:
        plan = plan.with_effects(PatchJob(changed, worker_spec(observed.job, move.target)))
    plan = dataclasses.replace(plan, status=changed, decision=decision)
    return emit_scaled(plan, move, now)


def complete_move(job_status: JobStatus, now: float) -> tuple[JobStatus, ScaleDecision | None]:
    """What is remembered once the change is made, and the decision that it was."""
    move, decision = job_status.scaling.move, job_status.decision
    if move is not None and decision is not None and decision.target_size == move.target_size:
        decision = dataclasses.replace(decision, applied=True)
        job_status = job_status.with_decision(decision)
    return dataclasses.replace(job_status, scaling=job_status.scaling.with_change(now)), decision


def pending_move(job_status: JobStatus) -> Move | None:
    """The change that all pods have to end for, as long as it is not made."""
    move = job_status.scaling.move
    return move if move is not None and move.cycles and not move.changed_at else None


def target_replicas(job: ObservedJob, move: Move) -> dict[str, int]:
    """What the change of a TFJob sets, by replica type as the job writes it."""
    wanted = {"worker": move.target, "ps": move.target_servers}
    return {
        item.key: wanted[item.kind]
        for item in kind_of_job(job).replicas(job.manifest)
        if item.kind in wanted and item.replicas != wanted[item.kind]
    }


def requested_counts(job: ObservedJob) -> tuple[int, int]:
    """Workers and parameter servers that it asks for."""
    return job.replicas.get("worker", 0), job.replicas.get("ps", 0)


def record_decision(
    plan: ReconcilePlan, decision: ScaleDecision, state: ScalingState
) -> ReconcilePlan:
    """The plan with a decision and the memory that goes with it."""
    status = dataclasses.replace(plan.status.with_decision(decision), scaling=state)
    return dataclasses.replace(plan, status=status, decision=decision)


def emit_scaled(plan: ReconcilePlan, move: Move, now: float) -> ReconcilePlan:
    """The plan with the Event of a change that was made."""
    message = f"Worker replicas {move.origin} -> {move.target}"
    if move.servers:
        message = f"{move.change} replicas"
    event = Event(names.EVENT_SCALED, message, at=now)
    return plan.emit_once(f"scaled:{move.decided_at:.3f}", event)
