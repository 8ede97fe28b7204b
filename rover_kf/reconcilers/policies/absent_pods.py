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

import math

from rover_kf.api import names
from rover_kf.api.jobs import Event, ObservedJob, Pod
from rover_kf.reconcilers.plan import Excuse, Locate, Observed, Plan, Remember, Replace, Tell
from rover_kf.reconcilers.policies import pending_pods

LOOK_SECONDS = 1.0
"""Between two looks while a round waits for pods."""
KNOCK_SECONDS = 5.0
"""The same while pods run and no coordinator answers; not where its node is silent: to ask there
takes long, and other jobs wait meanwhile."""
FIRST_POD_SECONDS = 10.0
"""How long the first pod waits for room before another one gives it its own: the scheduler tries a
pod anew at once if its last try was so long ago, and so before that one's successor."""
_SHORT = ("Insufficient", "Too many pods")
_MOST_SAID = 160


def node_rank(job: ObservedJob, pod: Pod) -> int:
    """The pod's place among those that train together, a Master or Chief first."""
    masters = job.replicas.get("master", 0) + job.replicas.get("chief", 0)
    return pod.replica_index + (masters if pod.replica_type == "worker" else 0)


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with what helps a round to be formed without those that cannot come."""
    if seen.job.suspended or seen.job.finished or seen.job.deleting:
        return made
    if seen.status is None:
        return _room_for_the_first(made, seen, now)
    awaited = set(seen.status.awaited)
    absent = {
        node_rank(seen.job, pod): f"{pod.name}: {why[:_MOST_SAID]}"
        for pod in seen.world
        if node_rank(seen.job, pod) in awaited and (why := pending_pods.cannot_come(pod, now))
    }
    if absent:
        made = made.then(Excuse(tuple(absent), "; ".join(absent.values())), status=made.status)
    here = {
        pod.name: pod.address
        for pod in seen.world
        if node_rank(seen.job, pod) in _sought(seen) - absent.keys() and _is_there(pod)
    }
    return made.then(Locate(here), status=made.status) if here else made


def _sought(seen: Observed) -> set[int]:
    """Ranks of pods that may not find the first one by its name, or it them by theirs.

    A name that was another pod's a moment ago, or that was asked for before it was there, leads
    nowhere for as long as name servers keep what they said. Of those that a round waits for, and
    while a world trains of those that would make it larger.
    """
    status = seen.status
    if status is None:
        return set()
    fewest = status.nodes if status.phase == "training" else math.inf
    ranks = {node_rank(seen.job, pod) for pod in seen.world}
    return {*status.awaited, *(rank for rank in ranks if rank >= fewest)}


def delay(seen: Observed) -> float | None:
    """Seconds until the next look; None if no round waits for anybody."""
    if seen.job.finished:
        return None
    if seen.status is not None:
        return LOOK_SECONDS if seen.status.awaited else None
    ours = names.INJECTED_ANNOTATION in seen.job.annotations
    runs = any(pod.phase == "Running" for pod in seen.pods)
    first = _first(seen)
    heard = first is None or first.node not in seen.silent
    return KNOCK_SECONDS if ours and runs and heard else None


def _is_there(pod: Pod) -> bool:
    return bool(pod.address) and pod.phase == "Running" and not pod.deleting


def _first(seen: Observed) -> Pod | None:
    return next((pod for pod in seen.world if node_rank(seen.job, pod) == 0), None)


def _lacks_room(pod: Pod) -> bool:
    return any(word in pod.unplaced for word in _SHORT)


def _room_for_the_first(made: Plan, seen: Observed, now: float) -> Plan:
    first = _first(seen)
    if not seen.replaceable or first is None or not _lacks_room(first):
        return made
    key = f"room:{first.uid[:8]}"
    if now - first.unplaced_since < FIRST_POD_SECONDS or made.status.has_told(key):
        return made
    others = [pod for pod in seen.pods if pod.phase == "Running" and not pod.deleting]
    # What the last one has in memory must be somewhere else, too.
    if len(others) < (1 if names.PREFIX + "checkpoint.path" in seen.job.annotations else 2):
        return made
    last = max(others, key=lambda pod: node_rank(seen.job, pod))
    message = (
        f"{last.name} gives its place to {first.name}, which has the coordinator and finds no room "
        f"({first.unplaced[:_MOST_SAID]}); training grows again when there is room for both"
    )
    event = Event(names.EVENT_COORDINATOR_POD_PRIORITIZED, message, warning=True, at=now)
    # Written down first: where it does not help, it is not tried again.
    memory = made.status.with_told(key)
    return made.then(Remember(memory), Tell(event), Replace(last), status=memory)
