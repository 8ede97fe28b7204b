# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose launcher, a step of a pipeline, is not heard of any more; pure.

A stopped run's SIGTERM may not reach its step, and the step's pod may be lost: the job would train
on for nobody. So the step counts an annotation on while it waits. Only whether the count has
changed since the last look matters, by the controller's own clock: no two clocks are compared. The
silence is told when a third of the lease is left, and nothing is done before that third has passed:
who was away together with the controller, since the API server was, has time to count on.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import Discard, Observed, Plan, Suspend, Tell
from rover_kf.reconcilers.status_annotation import LaunchSeen

TOLD_AT = 2 / 3
"""Of a lease, when the silence is told."""


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with the job suspended or deleted if its launcher was silent for the lease."""
    job, known = seen.job, made.status.launch
    if not _in_force(seen):
        return _knowing(made, LaunchSeen())
    if job.suspended:
        # Whoever resumes it has the whole lease.
        made = _knowing(made, LaunchSeen(ended=known.ended))
        return _discarded(made) if known.ended and seen.policy.launch_lost == "delete" else made
    renewal = job.annotations[names.LAUNCH_RENEWAL_ANNOTATION]
    if renewal != known.renewal:
        return _knowing(made, LaunchSeen(renewal, since=now))
    if now < known.since + seen.policy.launch_lease_seconds * TOLD_AT:
        return _knowing(made, known)
    if not known.warned:
        known = dataclasses.replace(known, warned=now)
        return _told(_knowing(made, known), seen, now)
    made = _knowing(made, known)
    return made if now < _end(known, seen) else _ended(made, seen, now)


def delay(made: Plan, seen: Observed, now: float) -> float | None:
    """Seconds until the launcher's silence is to be told or acted upon; None if it is not."""
    known = made.status.launch
    if not known.renewal or not _in_force(seen):
        return None
    warning = known.since + seen.policy.launch_lease_seconds * TOLD_AT
    return max((_end(known, seen) if known.warned else warning) - now, 0.0)


def _in_force(seen: Observed) -> bool:
    job, policy = seen.job, seen.policy
    kept = not policy.launch_lease_seconds or policy.launch_lost == "keep"
    launched = job.annotations.get(names.LAUNCH_RENEWAL_ANNOTATION)
    return bool(launched) and not (kept or job.finished or job.deleting)


def _end(known: LaunchSeen, seen: Observed) -> float:
    lease = seen.policy.launch_lease_seconds
    return max(known.since + lease, known.warned + lease * (1 - TOLD_AT))


def _told(made: Plan, seen: Observed, now: float) -> Plan:
    known = made.status.launch
    message = (
        f"{_launcher(known)} has been silent for {now - known.since:.0f} s; in "
        f"{_end(known, seen) - now:.0f} s launch.on-lease-expired ({seen.policy.launch_lost}) is "
        "done, unless it, or a step that takes its place, counts on"
    )
    event = Event(names.EVENT_LAUNCHER_SILENT, message, warning=True, at=now)
    return made.then(Tell(event), status=made.status)


def _ended(made: Plan, seen: Observed, now: float) -> Plan:
    known = made.status.launch
    silence = f"{_launcher(known)} was silent for {now - known.since:.0f} s (launch.lease)"
    deletes = seen.policy.launch_lost == "delete"
    if why := policy_source.managed_elsewhere(seen.job):
        if deletes:
            return _discarded(_tell_once(made, names.EVENT_LAUNCH_LEASE_EXPIRED, silence, now))
        message = f"{silence}, and yet the job goes on: {why}"
        return _tell_once(made, names.EVENT_NOT_SUSPENDED, message, now)
    reason = (
        f"suspended: {silence}; a step that takes its place resumes the job, as does "
        "runPolicy.suspend: false"
    )
    ended = dataclasses.replace(known, ended=now)
    memory = dataclasses.replace(made.status, launch=ended, suspended=reason, below_since=0.0)
    made = made.then(Suspend(memory), status=memory)
    made = _tell_once(made, names.EVENT_LAUNCH_LEASE_EXPIRED, reason, now)
    return _discarded(made) if deletes else made


def _tell_once(made: Plan, name: str, message: str, now: float) -> Plan:
    key = f"silent:{made.status.launch.since:.0f}"
    if made.status.has_told(key):
        return made
    event = Event(name, message, warning=True, at=now)
    return made.then(Tell(event), status=made.status.with_told(key))


def _discarded(made: Plan) -> Plan:
    return made.then(Discard(), status=made.status)


def _knowing(made: Plan, known: LaunchSeen) -> Plan:
    return dataclasses.replace(made, status=dataclasses.replace(made.status, launch=known))


def _launcher(known: LaunchSeen) -> str:
    return f"the launching step {known.renewal.partition(' ')[0]}"
