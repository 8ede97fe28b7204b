# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The last rung: a job that cannot train for a long time is suspended, with the reason; pure.

Below its fewest pods a job trains nothing and yet holds what its other pods were given. With
``failures.suspend-after`` its pods are ended after that time and what they held is free for others;
who sets ``runPolicy.suspend`` to false lets it go on from storage. A suspended job does not come
back by itself: it is for the queue or the person that put it there to say when.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import Observed, Plan, Suspend, Tell
from rover_kf.reconcilers.policies import pending_pods
from rover_kf.reconcilers.status_annotation import JobStatus

_MOST_SAID, _MOST_PODS = 120, 3


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with the job suspended if it was below its fewest pods for the policy's time."""
    job, after = seen.job, seen.policy.suspend_after_seconds
    if job.finished or job.deleting:
        return made
    if job.suspended:
        return _with(made, below_since=0.0)
    fewest = _fewest(seen)
    if not after or able(seen, now) >= fewest:
        return _with(made, below_since=0.0, suspended="")
    since = made.status.below_since or now
    made = _with(made, below_since=since, suspended="")
    if now - since < after:
        return made
    if why := policy_source.suspend_refusal(job, made.status):
        return _tell_once(made, why, since, now)
    reason = _reason(seen, made.status, since, now)
    memory = dataclasses.replace(made.status, suspended=reason, below_since=0.0)
    event = Event(names.EVENT_SUSPENDED, reason, warning=True, at=now)
    return made.then(Suspend(memory), Tell(event), status=memory)


def delay(made: Plan, seen: Observed, now: float) -> float | None:
    """Seconds until the job is to be suspended if nothing changes; None if it is not."""
    since, after = made.status.below_since, seen.policy.suspend_after_seconds
    return max(since + after - now, 0.0) or None if since else None


def able(seen: Observed, now: float) -> int:
    """How many pods train, could train, start on a node, or have ended well."""
    return sum(_able(pod, seen, now) for pod in seen.pods)


def _fewest(seen: Observed) -> int:
    """Without a Chief or a parameter server nothing trains, however many workers there are."""
    given = seen.job.replicas
    return seen.policy.min + sum(given.get(kind, 0) for kind in ("master", "chief", "ps"))


def _able(pod: Pod, seen: Observed, now: float) -> bool:
    if pod.phase == "Succeeded":
        return True
    there = pod.phase in ("Pending", "Running") and pod.node and pod.node not in seen.silent
    return bool(there) and not pod.deleting and not pending_pods.cannot_come(pod, now)


def _with(made: Plan, **known: object) -> Plan:
    memory = dataclasses.replace(made.status, **known)  # type: ignore[arg-type]
    return dataclasses.replace(made, status=memory)


def _tell_once(made: Plan, why: str, since: float, now: float) -> Plan:
    key = f"stays:{since:.0f}"
    if made.status.has_told(key):
        return made
    message = f"too few pods can train, and yet it is not suspended: {why}"
    event = Event(names.EVENT_NOT_SUSPENDED, message, warning=True, at=now)
    return made.then(Tell(event), status=made.status.with_told(key))


def _reason(seen: Observed, memory: JobStatus, since: float, now: float) -> str:
    whys = [
        f"{pod.name}: {why[:_MOST_SAID]}"
        for pod in seen.pods
        if (why := pending_pods.cannot_come(pod, now))
    ]
    causes = f" ({'; '.join(whys[:_MOST_PODS])})" if whys else ""
    fewest = _fewest(seen)
    step = memory.durable_step
    place = f"from step {step} on storage" if step else "from the start: it had saved nothing"
    return (
        f"suspended: {able(seen, now)} of at least {fewest} pods could train for "
        f"{now - since:.0f} s; with runPolicy.suspend: false it goes on {place}{causes}"
    )
