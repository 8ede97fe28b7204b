# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A change of a TFJob's workers or parameter servers, step by step; pure.

Live: written down, told, made in one patch with its trace. Through the suspend cycle: written down,
told, the job suspended (by ``suspend_cycle``), its pods awaited, then the numbers and the
resumption in one patch. Whoever looks after a crash finds the intention, the suspension with its
mark, or the change.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.injection.adapters import TENSORFLOW
from rover_kf.reconcilers.plan import Observed, ReconcilePlan, Resize, WriteStatus
from rover_kf.reconcilers.scaling import resize as reconcilers_resize
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.scaling_state import Move, ScalingState


def start(
    plan: ReconcilePlan,
    observed: Observed,
    decision: ScaleDecision,
    state: ScalingState,
    now: float,
) -> ReconcilePlan:
    """Write the intention down before anything is done about it."""
    plan = reconcilers_resize.record_decision(plan, decision, state)
    plan = plan.with_effects(WriteStatus(plan.status), status=plan.status)
    move = state.move
    return plan if move is None else continue_(plan, observed, move, now, allowed=True)


def continue_(
    plan: ReconcilePlan, observed: Observed, move: Move, now: float, *, allowed: bool
) -> ReconcilePlan:
    """Bring a change that is written down one step further; also after any crash."""
    numbers = requested_counts(observed.job)
    late = now - move.decided_at > reconcilers_resize.ABANDON_SECONDS
    resumed = bool(plan.status.cycle_started_at)  # by somebody else, before all its pods were gone
    if numbers not in (move.origin_size, move.target_size) or not allowed or late or resumed:
        # Someone else set the numbers, or took the permission back: theirs is the last word.
        return reconcilers_resize.abort(plan)
    plan = _emit_decision(plan, move, now)
    if move.cycles and numbers != move.target_size:
        return plan  # the cycle suspends it
    changed, decision = complete_move(plan.status, now)
    if numbers != move.target_size:
        resize = Resize(move.target, changed, TENSORFLOW.specs)
        plan = plan.with_effects(resize, status=changed)
    plan = dataclasses.replace(plan, status=changed, decision=decision)
    return emit_scaled(plan, move, now)


def pending_move(job_status: JobStatus) -> Move | None:
    """The change that all pods have to end for, as long as it is not made."""
    move = job_status.scaling.move
    return move if move is not None and move.cycles and not move.changed_at else None


def complete_move(job_status: JobStatus, now: float) -> tuple[JobStatus, ScaleDecision | None]:
    """What is remembered once the change is made, and the decision that it was."""
    move, decision = job_status.scaling.move, job_status.decision
    if move is not None and decision is not None and decision.target_size == move.target_size:
        decision = dataclasses.replace(decision, applied=True)
        job_status = job_status.with_decision(decision)
    return dataclasses.replace(job_status, scaling=job_status.scaling.with_change(now)), decision


def target_replicas(job: ObservedJob, move: Move) -> dict[str, int]:
    """What the change sets, by replica type as the job writes it."""
    wanted = {"worker": move.target, "ps": move.target_servers}
    return {
        item.key: wanted[item.kind]
        for item in TENSORFLOW.replicas(job.manifest)
        if item.kind in wanted and item.replicas != wanted[item.kind]
    }


def requested_counts(job: ObservedJob) -> tuple[int, int]:
    """Workers and parameter servers that it asks for."""
    return job.replicas.get("worker", 0), job.replicas.get("ps", 0)


def with_scaling_state(plan: ReconcilePlan, state: ScalingState) -> ReconcilePlan:
    """The plan with that state, and nothing decided."""
    memory = dataclasses.replace(plan.status, scaling=state)
    return dataclasses.replace(plan, status=memory)


def emit_scaled(plan: ReconcilePlan, move: Move, now: float) -> ReconcilePlan:
    """The plan with the Event of a change that was made."""
    event = Event(names.EVENT_SCALED, f"{move.change} replicas", at=now)
    return reconcilers_resize.emit_once(plan, f"scaled:{move.decided_at:.3f}", event)


def _emit_decision(plan: ReconcilePlan, move: Move, now: float) -> ReconcilePlan:
    name = names.EVENT_SCALE_ROLLED_BACK if move.rolls_back else names.EVENT_SCALE_DECISION
    event = Event(name, move.reason, warning=move.rolls_back, at=now)
    return reconcilers_resize.emit_once(plan, f"decided:{move.decided_at:.3f}", event)
