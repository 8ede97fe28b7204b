# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that a job keeps away from, since training could not go on there; pure.

What the coordinator or Kubernetes says of a node is remembered in the job's annotation, the job's
pod templates leave the node out, and pods that are on it are replaced. A node comes back after the
policy's time, or sooner if the job cannot have its fewest pods without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.faults.faulty_nodes import UnfitNode
from rover_kf.api.jobs import Event, Pod
from rover_kf.elastic.failures.classify import classify_pod
from rover_kf.elastic.failures.evidence import Evidence
from rover_kf.elastic.failures.rule import REPLACE_NODE
from rover_kf.injection import node_affinity
from rover_kf.reconcilers.plan import Cordon, Observed, Plan, Replace, Shun, Tell
from rover_kf.reconcilers.policies import node_check
from rover_kf.reconcilers.status_annotation import Avoided, JobStatus

MOST = 8
"""Nodes at a time; the annotation is bounded, and so is what a mistake may cost."""
NO_ROOM_SECONDS = 60.0
"""How long a pod may find no node while the job lacks its fewest; then the nodes come back."""
LOOK_SECONDS = 5.0
"""Between two looks while the job lacks them."""
LONGEST_REASON = 120
_ENDED = ("Succeeded", "Failed")


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with unfit nodes left out, their pods replaced, and nodes taken back."""
    if seen.job.finished or seen.job.deleting or not seen.replaceable:
        return made
    before = made.status.avoided
    kept = tuple(one for one in before if one.until > now)
    new = _new(seen, kept, now)
    after, events = (*kept, *new), [_avoided(one, now) for one in new]
    if _lacks_room(seen, now) and any(not one.given_up for one in after):
        events.append(_given_up(after, now))
        after = tuple(dataclasses.replace(one, given_up=one.given_up or now) for one in after)
    memory = dataclasses.replace(made.status, avoided=after)
    out = [one.node for one in after if not one.given_up]
    made = made.then(*_cordons(seen, new), status=memory)
    if patches := _patches(seen, out, [one.node for one in before if one.node not in out]):
        made = made.then(Shun(patches, memory), status=memory)
    replaced = map(Replace, _to_replace(seen, out, memory))
    return made.then(*map(Tell, events), *replaced, status=memory)


def delay(seen: Observed, memory: JobStatus, now: float) -> float | None:
    """Seconds until the next look; None if no node is avoided."""
    if not memory.avoided:
        return None
    waits = any(pod.unplaced for pod in seen.pods)
    return LOOK_SECONDS if waits else min(one.until for one in memory.avoided) - now


def _new(seen: Observed, kept: tuple[Avoided, ...], now: float) -> tuple[Avoided, ...]:
    """Nodes that were found unfit and are not known as such."""
    found: dict[str, Avoided] = {}
    room = min(MOST, max(len(seen.pods) // 2, 1)) - len(kept)
    known = {one.node for one in kept} | _all_there_is(seen)
    told = seen.status.unfit if seen.status else ()
    for unfit in (*told, *node_check.unfit(seen), *_told_by_kubernetes(seen, now)):
        until = unfit.at + seen.policy.node_avoid_seconds
        if unfit.node not in known and unfit.node not in found and until > now and room > 0:
            reason = f"{unfit.pod}: {unfit.kind}: {unfit.reason}"[:LONGEST_REASON]
            found[unfit.node] = Avoided(unfit.node, until, reason)
            room -= 1
    return tuple(found.values())


def _cordons(seen: Observed, new: tuple[Avoided, ...]) -> list[Cordon]:
    """Of nodes that broke or failed a check; what else a pod met there may be of its own making."""
    told = seen.status.unfit if seen.status else ()
    broken = {one.node for one in (*told, *node_check.unfit(seen))}
    found = [one for one in new if one.node in broken]
    return [Cordon(one.node, one.reason) for one in found] if seen.policy.cordons else []


def _all_there_is(seen: Observed) -> set[str]:
    """The node of all the job's pods, if there are several.

    To leave it would cost everything that is in memory, and on a machine alone cost it for ever.
    """
    nodes = [pod.node for pod in seen.pods if pod.node and pod.phase not in _ENDED]
    return set(nodes) if len(nodes) > 1 and len(set(nodes)) == 1 else set()


def _told_by_kubernetes(seen: Observed, now: float) -> list[UnfitNode]:
    """A pod that its node ended or refused; what Kubernetes does on purpose is no fault of it."""
    found = []
    for pod in seen.pods:
        verdict = classify_pod(Evidence(pod=pod.reasons, message=pod.message))
        if verdict and verdict.action == REPLACE_NODE and verdict.counts and pod.node:
            found.append(UnfitNode(pod.node, pod.name, verdict.kind, verdict.reason, now))
    return found


def _lacks_room(seen: Observed, now: float) -> bool:
    """Whether the job has fewer pods than it needs, and one finds no node."""
    placed = [pod for pod in seen.pods if pod.node and not pod.deleting and pod.phase not in _ENDED]
    masters = seen.job.replicas.get("master", 0)
    waits = any(pod.unplaced and now - pod.unplaced_since >= NO_ROOM_SECONDS for pod in seen.pods)
    return waits and len(placed) < seen.policy.min + masters


def _to_replace(seen: Observed, out: list[str], memory: JobStatus) -> list[Pod]:
    """Pods on nodes that are left out, and pods that wait for a node with an old template."""
    given_up = max((one.given_up for one in memory.avoided), default=0.0)
    return [
        pod
        for pod in seen.pods
        if not pod.deleting
        and pod.phase not in _ENDED
        and (pod.node in out or (pod.unplaced and pod.unplaced_since < given_up))
    ]


def _patches(seen: Observed, out: list[str], back: list[str]) -> dict[str, object]:
    """Merge patches of the replica specs whose templates are to change."""
    found: dict[str, object] = {}
    for kind, spec in _specs(seen).items():
        pod = node_affinity.leave_out(spec["template"]["spec"], out, no_more=back)
        if pod is not None:
            found[kind] = {"template": {"spec": pod}}
    return found


def _specs(seen: Observed) -> Mapping[str, Any]:
    return seen.job.manifest["spec"].get("pytorchReplicaSpecs") or {}


def _avoided(one: Avoided, now: float) -> Event:
    message = (
        f"{one.node} is left out of this job for {one.until - now:.0f} s and its pods there are "
        f"replaced (failures.node-avoid): {one.reason}"
    )
    return Event(names.EVENT_NODE_AVOIDED, message, warning=True, at=now)


def _given_up(avoided: tuple[Avoided, ...], now: float) -> Event:
    message = (
        f"{', '.join(one.node for one in avoided)} may be used again: without, the job has found "
        f"no room for its fewest pods for {NO_ROOM_SECONDS:.0f} s"
    )
    return Event(names.EVENT_NODE_AVOIDANCE_ENDED, message, warning=True, at=now)
