# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The suspend cycle: what a TFJob can be given while no pod of it runs alone; pure.

More cores where no pod can be resized, and another number of parameter servers, or of workers that
do not come and go. The Training Operator owns a TFJob's indices and fails a job that loses a pod,
so one cannot be replaced alone, and TF_CONFIG is fixed when a process begins. The job is suspended,
whose chief saves before all pods end, and goes on from storage once they are gone: the new ones
have what the template states. The mark in the job's annotation tells a cycle from a suspension that
is somebody's wish.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.reconcilers.plan import Observed, Plan, Resume, Suspend, Tell
from rover_kf.reconcilers.policies import cpu_events
from rover_kf.reconcilers.scaling import ps_proposal, ps_resize
from rover_kf.scaling.policy import AUTO
from rover_kf.scaling.scaling_state import Move

LOOK_SECONDS = 1.0
"""Between two looks at pods that end."""
RESTART_SECONDS = 60.0
"""A cycle takes at least: all processes load TensorFlow again."""
WORTH = 4.0
"""Work left, in restarts, from which on a cycle pays: twice as many cores may halve it."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with the job suspended for a change, or resumed with it when its pods are gone."""
    job, known = seen.job, made.status
    if job.finished or job.deleting:
        return made
    if not job.suspended:
        if known.cycle:  # somebody has resumed it before us
            made = dataclasses.replace(made, status=dataclasses.replace(known, cycle=0.0))
        return _begun(made, seen, now)
    if not known.cycle or seen.pods:
        return made
    move = ps_resize.pending(known)
    return _resumed(made, now) if move is None else _changed(made, seen, move, now)


def delay(made: Plan, seen: Observed) -> float | None:
    """Seconds until a suspended job is looked at again; None if only a change calls for it."""
    ended = seen.job.deleting or seen.job.finished
    return LOOK_SECONDS if made.status.cycle and not ended else None


def _begun(made: Plan, seen: Observed, now: float) -> Plan:
    if any(isinstance(effect, Suspend) for effect in made.effects):
        return made  # for a reason that does not pass by itself
    if ps_proposal.stays(seen, made.status):
        return made
    move = ps_resize.pending(made.status)
    if move is not None:
        return _suspended(made, f"for {move.change}", now)
    if _is_due(made, seen):
        pods = ", ".join(made.cpu.behind)
        return _suspended(made, f"{pods} cannot be resized while it runs", now)
    return made


def _is_due(made: Plan, seen: Observed) -> bool:
    """Whether pods have less than they shall, and beginning anew is the way and pays."""
    status = seen.status
    if seen.resizes or seen.replaceable or cpu_events.refusal(seen) or status is None:
        return False
    if status.phase != "training" or not made.cpu.behind:
        return False
    if status.total_steps is None:
        return True
    rate = made.cpu.rate
    left = (status.total_steps - status.step) / rate if rate else 0.0
    return left > WORTH * max(status.restart_seconds, RESTART_SECONDS)


def _suspended(made: Plan, why: str, now: float) -> Plan:
    reason = (
        f"suspended: {why}; the job goes on by itself, from storage, once all pods are gone (step "
        f"{made.status.durable_step} or later)"
    )
    memory = dataclasses.replace(made.status, suspended=reason, cycle=now)
    event = Event(names.EVENT_SUSPENDED, reason, at=now)
    return made.then(Suspend(memory), Tell(event), status=memory)


def _resumed(made: Plan, now: float, more: str = "") -> Plan:
    """As it is, which is more than it was where its template was changed."""
    known = made.status
    memory = dataclasses.replace(known, cycle=0.0, suspended="")
    message = f"its pods are gone after {now - known.cycle:.0f} s: new ones get what it states"
    event = Event(names.EVENT_RESUMED, message + more, warning=bool(more), at=now)
    return made.then(Resume(memory), Tell(event), status=memory)


def _changed(made: Plan, seen: Observed, move: Move, now: float) -> Plan:
    """With the numbers that it was suspended for, unless that may be no more."""
    refused = seen.refused and f"the API server does not take that: {seen.refused}"
    if seen.policy.mode != AUTO:
        refused = f"scaling.mode is {seen.policy.mode} by now"
    elif not refused and ps_resize.numbers_of(seen.job) not in (move.here, move.there):
        refused = "its numbers were changed meanwhile"
    if refused:
        scaling = dataclasses.replace(made.status.scaling, move=None)
        ban = seen.policy.ban_seconds
        scaling = scaling.with_ban(move.target, ban, now, move.target_servers)
        made = ps_resize.remembering(made, scaling)
        return _resumed(made, now, f"; without {move.change}: {refused}")
    known, decision = ps_resize.made_of(made.status, now)
    memory = dataclasses.replace(known, cycle=0.0, suspended="")
    spent = now - made.status.cycle
    message = f"its pods are gone after {spent:.0f} s: it goes on with {move.change}"
    event = Event(names.EVENT_RESUMED, message, at=now)
    effect = Resume(memory, ps_resize.replicas(seen.job, move))
    made = made.then(effect, Tell(event), status=memory)
    return ps_resize.tell_scaled(dataclasses.replace(made, decision=decision), move, now)
