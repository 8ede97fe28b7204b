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
from rover_kf.reconcilers.plan import Observed, Plan, Remember, Resize
from rover_kf.reconcilers.scaling import resize as reconcilers_resize
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.scaling_state import Move, ScalingState


def begin(
    plan: Plan, seen: Observed, decision: ScaleDecision, state: ScalingState, now: float
) -> Plan:
    """Write the intention down before anything is done about it."""
    plan = reconcilers_resize.decided(plan, decision, state)
    plan = plan.then(Remember(plan.status), status=plan.status)
    move = state.move
    return plan if move is None else carry_on(plan, seen, move, now, allowed=True)


def carry_on(plan: Plan, seen: Observed, move: Move, now: float, *, allowed: bool) -> Plan:
    """Bring a change that is written down one step further; also after any crash."""
    numbers = numbers_of(seen.job)
    late = now - move.decided_at > reconcilers_resize.ABANDON_SECONDS
    resumed = bool(plan.status.cycle)  # by somebody else, before all its pods were gone
    if numbers not in (move.here, move.there) or not allowed or late or resumed:
        # Someone else set the numbers, or took the permission back: theirs is the last word.
        return reconcilers_resize.abandoned(plan)
    plan = _tell_decided(plan, move, now)
    if move.cycles and numbers != move.there:
        return plan  # the cycle suspends it
    changed, decision = made_of(plan.status, now)
    if numbers != move.there:
        resize = Resize(move.target, changed, TENSORFLOW.specs)
        plan = plan.then(resize, status=changed)
    plan = dataclasses.replace(plan, status=changed, decision=decision)
    return tell_scaled(plan, move, now)


def pending(memory: JobStatus) -> Move | None:
    """The change that all pods have to end for, as long as it is not made."""
    move = memory.scaling.move
    return move if move is not None and move.cycles and not move.changed_at else None


def made_of(memory: JobStatus, now: float) -> tuple[JobStatus, ScaleDecision | None]:
    """What is remembered once the change is made, and the decision that it was."""
    move, decision = memory.scaling.move, memory.decision
    if move is not None and decision is not None and decision.there == move.there:
        decision = dataclasses.replace(decision, applied=True)
        memory = memory.deciding(decision)
    return dataclasses.replace(memory, scaling=memory.scaling.with_change(now)), decision


def replicas(job: ObservedJob, move: Move) -> dict[str, int]:
    """What the change sets, by replica type as the job writes it."""
    wanted = {"worker": move.target, "ps": move.target_servers}
    return {
        item.key: wanted[item.kind]
        for item in TENSORFLOW.replicas(job.manifest)
        if item.kind in wanted and item.replicas != wanted[item.kind]
    }


def numbers_of(job: ObservedJob) -> tuple[int, int]:
    """Workers and parameter servers that it asks for."""
    return job.replicas.get("worker", 0), job.replicas.get("ps", 0)


def remembering(plan: Plan, state: ScalingState) -> Plan:
    """The plan with that state, and nothing decided."""
    memory = dataclasses.replace(plan.status, scaling=state)
    return dataclasses.replace(plan, status=memory)


def tell_scaled(plan: Plan, move: Move, now: float) -> Plan:
    """The plan with the Event of a change that was made."""
    event = Event(names.EVENT_SCALED, f"{move.change} replicas", at=now)
    return reconcilers_resize.tell_once(plan, f"scaled:{move.decided_at:.3f}", event)


def _tell_decided(plan: Plan, move: Move, now: float) -> Plan:
    name = names.EVENT_SCALE_ROLLED_BACK if move.rolls_back else names.EVENT_SCALE_DECISION
    event = Event(name, move.reason, warning=move.rolls_back, at=now)
    return reconcilers_resize.tell_once(plan, f"decided:{move.decided_at:.3f}", event)
