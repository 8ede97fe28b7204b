# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The suspend cycle: where no pod can be resized, a TFJob begins anew with more cores; pure.

The Training Operator owns a TFJob's indices and fails a job that loses a pod, so one parameter
server cannot be replaced alone. The job is suspended, whose chief saves before all pods end, and
goes on from storage once they are gone: the new ones have what the template states. The mark in the
job's annotation tells a cycle from a suspension that is somebody's wish.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import cpu_events, cpu_limits, suspension
from rover_kf.reconcilers.plan import Observed, Plan, Resume, Suspend, Tell

LOOK_SECONDS = 1.0
"""Between two looks at pods that end."""
RESTART_SECONDS = 60.0
"""A cycle takes at least: all processes load TensorFlow again."""
WORTH = 4.0
"""Work left, in restarts, from which on a cycle pays: twice as many cores may halve it."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with the job suspended for its servers' sake, or resumed when its pods are gone."""
    job, known = seen.job, made.status
    if job.finished or job.deleting:
        return made
    if not job.suspended:
        if known.cycle:  # somebody has resumed it before us
            made = dataclasses.replace(made, status=dataclasses.replace(known, cycle=0.0))
        return _begun(made, seen, now) if _is_due(made, seen) else made
    if not known.cycle or seen.pods:
        return made
    memory = dataclasses.replace(known, cycle=0.0, suspended="")
    message = f"its pods are gone after {now - known.cycle:.0f} s: new ones get what it states"
    event = Event(names.EVENT_RESUMED, message, at=now)
    return made.then(Resume(memory), Tell(event), status=memory)


def delay(made: Plan, seen: Observed) -> float | None:
    """Seconds until a suspended job is looked at again; None if only a change calls for it."""
    ended = seen.job.deleting or seen.job.finished
    return LOOK_SECONDS if made.status.cycle and not ended else None


def _is_due(made: Plan, seen: Observed) -> bool:
    """Whether pods have less than they shall, and beginning anew is the way and pays."""
    status = seen.status
    if seen.resizes or seen.replaceable or cpu_events.refusal(seen) or status is None:
        return False
    if any(isinstance(effect, Suspend) for effect in made.effects):
        return False  # for a reason that does not pass by itself
    if status.phase != "training" or not cpu_limits.behind(seen):
        return False
    if suspension.refusal(seen.job, made.status) or made.status.durable_step is None:
        return False
    if status.total_steps is None:
        return True
    rate = cpu_limits.rate(made.status)
    left = (status.total_steps - status.step) / rate if rate else 0.0
    return left > WORTH * max(status.restart_seconds, RESTART_SECONDS)


def _begun(made: Plan, seen: Observed, now: float) -> Plan:
    pods = ", ".join(cpu_limits.behind(seen))
    reason = (
        f"suspended: {pods} cannot be resized while it runs; the job goes on by itself, from "
        f"storage, once all pods are gone (step {made.status.durable_step} or later)"
    )
    memory = dataclasses.replace(made.status, suspended=reason, cycle=now)
    event = Event(names.EVENT_SUSPENDED, reason, at=now)
    return made.then(Suspend(memory), Tell(event), status=memory)
