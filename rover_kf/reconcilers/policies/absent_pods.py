# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that cannot come now, so that the others start without them, and where the others are; pure.

A round waits for the pods that it expects. The coordinator sees only those that have come; of one
that no node has room for, or whose image cannot be had, the cluster knows that waiting is in vain.
Such a pod is a newcomer whenever it comes, and a newcomer costs no step.

The first pod is another matter: it has the coordinator, and without it no round can be formed.
Where it finds no room, the last pod of the job gives it its own.
"""

from __future__ import annotations

import logging
import math

from rover_kf.api import names
from rover_kf.api.jobs import Event, ObservedJob, Pod
from rover_kf.api.membership import PodAddresses
from rover_kf.api.status import UnavailablePodsRequest
from rover_kf.reconcilers.plan import CallCoordinator, DeletePod, Observed, ReconcilePlan
from rover_kf.reconcilers.policies import pending_pods

POLL_SECONDS = 1.0
"""Between two looks while a round waits for pods."""
COORDINATOR_POLL_SECONDS = 5.0
"""The same while pods run and no coordinator answers; not where its node is silent: to ask there
takes long, and other jobs wait meanwhile."""
FIRST_POD_SECONDS = 10.0
"""How long the first pod waits for room before another one gives it its own: the scheduler tries a
pod anew at once if its last try was so long ago, and so before that one's successor."""
_CAPACITY_MESSAGES = ("Insufficient", "Too many pods")
_MAX_MESSAGE = 160


def node_rank(job: ObservedJob, pod: Pod) -> int:
    """The pod's place among those that train together, a Master or Chief first."""
    masters = job.replicas.get("master", 0) + job.replicas.get("chief", 0)
    return pod.replica_index + (masters if pod.replica_type == "worker" else 0)


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with what helps a round to be formed without those that cannot come."""
    if observed.job.inactive:
        return plan
    if observed.status is None:
        return _evict_for_first_pod(plan, observed, now)
    awaited = set(observed.status.awaited_ranks)
    absent = {
        node_rank(observed.job, pod): f"{pod.name}: {why[:_MAX_MESSAGE]}"
        for pod in observed.world_pods
        if node_rank(observed.job, pod) in awaited
        and (why := pending_pods.unavailable_reason(pod, now))
    }
    if absent:
        body = UnavailablePodsRequest(tuple(absent), "; ".join(absent.values()))
        failure = "it waits for pods that cannot come"
        plan = plan.with_effects(CallCoordinator(names.PATH_ABSENT, body, failure))
    here = {
        pod.name: pod.address
        for pod in observed.world_pods
        if node_rank(observed.job, pod) in _ranks_to_locate(observed) - absent.keys()
        and pod.address
        and pod.phase == "Running"
        and not pod.deleting
    }
    if not here:
        return plan
    failure = "its pods find each other by name alone"
    call = CallCoordinator(names.PATH_PODS, PodAddresses(here), failure, level=logging.INFO)
    return plan.with_effects(call)


def _ranks_to_locate(observed: Observed) -> set[int]:
    """Ranks of pods that may not find the first one by its name, or it them by theirs.

    A name that was another pod's a moment ago, or that was asked for before it was there, leads
    nowhere for as long as name servers keep what they said. Of those that a round waits for, and
    while a world trains of those that would make it larger.
    """
    status = observed.status
    if status is None:
        return set()
    fewest = status.nodes if status.phase == "training" else math.inf
    ranks = {node_rank(observed.job, pod) for pod in observed.world_pods}
    return {*status.awaited_ranks, *(rank for rank in ranks if rank >= fewest)}


def delay(observed: Observed) -> float | None:
    """Seconds until the next look; None if no round waits for anybody."""
    if observed.job.finished:
        return None
    if observed.status is not None:
        return POLL_SECONDS if observed.status.awaited_ranks else None
    ours = names.INJECTED_ANNOTATION in observed.job.annotations
    runs = any(pod.phase == "Running" for pod in observed.pods)
    first = _first_pod(observed)
    heard = first is None or first.node not in observed.silent_nodes
    return COORDINATOR_POLL_SECONDS if ours and runs and heard else None


def _first_pod(observed: Observed) -> Pod | None:
    return next((pod for pod in observed.world_pods if node_rank(observed.job, pod) == 0), None)


def _evict_for_first_pod(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    first = _first_pod(observed)
    if not observed.replaceable or first is None:
        return plan
    if not any(word in first.unschedulable for word in _CAPACITY_MESSAGES):
        return plan
    key = f"room:{first.uid[:8]}"
    if now - first.unschedulable_since < FIRST_POD_SECONDS or plan.status.has_emitted(key):
        return plan
    others = [pod for pod in observed.pods if pod.phase == "Running" and not pod.deleting]
    # What the last one has in memory must be somewhere else, too.
    if len(others) < (1 if names.PREFIX + "checkpoint.path" in observed.job.annotations else 2):
        return plan
    last = max(others, key=lambda pod: node_rank(observed.job, pod))
    message = (
        f"{last.name} gives its place to {first.name}, which has the coordinator and finds no room "
        f"({first.unschedulable[:_MAX_MESSAGE]}); training grows again when there is room for both"
    )
    event = Event(names.EVENT_COORDINATOR_POD_PRIORITIZED, message, warning=True, at=now)
    # Written down first: where it does not help, it is not tried again.
    memory = plan.status.with_emitted(key)
    return plan.patch(memory, event).with_effects(DeletePod(last))
