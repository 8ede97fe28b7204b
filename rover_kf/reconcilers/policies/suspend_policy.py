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
from rover_kf.reconcilers.plan import Observed, ReconcilePlan, suspend_spec
from rover_kf.reconcilers.policies import pending_pods
from rover_kf.reconcilers.status_annotation import JobStatus

_MAX_MESSAGE, _MAX_PODS = 120, 3


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the job suspended if it was below its fewest pods for the policy's time."""
    job, after = observed.job, observed.policy.sections.failures.suspend_after
    if job.finished or job.deleting:
        return plan
    if job.suspended:
        return plan.with_status(below_since=0.0)
    fewest = _min_pods(observed)
    if not after or count_able_pods(observed, now) >= fewest:
        return plan.with_status(below_since=0.0, suspended="")
    since = plan.status.below_since or now
    plan = plan.with_status(below_since=since, suspended="")
    if now - since < after:
        return plan
    if why := policy_source.suspend_refusal(job, plan.status):
        message = f"too few pods can train, and yet it is not suspended: {why}"
        event = Event(names.EVENT_NOT_SUSPENDED, message, warning=True, at=now)
        return plan.emit_once(f"stays:{since:.0f}", event)
    reason = _suspend_reason(observed, plan.status, since, now)
    memory = dataclasses.replace(plan.status, suspended=reason, below_since=0.0)
    event = Event(names.EVENT_SUSPENDED, reason, warning=True, at=now)
    return plan.patch(memory, event, suspend_spec(observed.job))


def delay(plan: ReconcilePlan, observed: Observed, now: float) -> float | None:
    """Seconds until the job is to be suspended if nothing changes; None if it is not."""
    since, after = plan.status.below_since, observed.policy.sections.failures.suspend_after
    return max(since + after - now, 0.0) or None if since else None


def count_able_pods(observed: Observed, now: float) -> int:
    """How many pods train, could train, start on a node, or have ended well."""
    return sum(_is_able(pod, observed, now) for pod in observed.pods)


def _min_pods(observed: Observed) -> int:
    """Without a Chief or a parameter server nothing trains, however many workers there are."""
    given = observed.job.replicas
    return observed.policy.min + sum(given.get(kind, 0) for kind in ("master", "chief", "ps"))


def _is_able(pod: Pod, observed: Observed, now: float) -> bool:
    if pod.phase == "Succeeded":
        return True
    there = (
        pod.phase in ("Pending", "Running") and pod.node and pod.node not in observed.silent_nodes
    )
    return bool(there) and not pod.deleting and not pending_pods.unavailable_reason(pod, now)


def _suspend_reason(observed: Observed, job_status: JobStatus, since: float, now: float) -> str:
    whys = [
        f"{pod.name}: {why[:_MAX_MESSAGE]}"
        for pod in observed.pods
        if (why := pending_pods.unavailable_reason(pod, now))
    ]
    causes = f" ({'; '.join(whys[:_MAX_PODS])})" if whys else ""
    fewest = _min_pods(observed)
    step = job_status.durable_step
    place = f"from step {step} on storage" if step else "from the start: it had saved nothing"
    return (
        f"suspended: {count_able_pods(observed, now)} of at least {fewest} pods could train for "
        f"{now - since:.0f} s; with runPolicy.suspend: false it goes on {place}{causes}"
    )
