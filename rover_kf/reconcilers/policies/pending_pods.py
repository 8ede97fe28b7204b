# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that do not start: no node has room for them, or theirs prepares them for long; pure.

Kubernetes says it on the pod alone, and the Training Operator nothing at all: the job looks as if
it were about to start, for ever. What the kubelet says of a container is in events.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.elastic.failures.classify import classify_pod
from rover_kf.elastic.failures.rule import ExitEvidence
from rover_kf.reconcilers.plan import Observed

CONFIRM_SECONDS = 1.0
"""A pod may be without a node for a moment, as while its predecessor's place is being freed."""
NOT_STARTING = frozenset({"CrashLoopBackOff"})
"""What a container waits for, besides what the catalogue of failures says cannot be started."""
UNSCHEDULABLE_SECONDS = 10.0
"""A node may come free in that time, or one be added."""
PREPARING_SECONDS = 120.0
"""A large image takes as long; a volume, Secret or ConfigMap that is not there takes for ever."""
_PREPARING = ("", "ContainerCreating", "PodInitializing")
_MAX_NAMED = 3


def unavailable_reason(pod: Pod, now: float) -> str:
    """Why there is no use in waiting for the pod; empty if there is."""
    if pod.phase not in ("Pending", "Running") or pod.deleting:
        return ""
    if pod.unschedulable:
        sure = now - pod.unschedulable_since > CONFIRM_SECONDS
        return f"no node for it: {pod.unschedulable}" if sure else ""
    for container in pod.containers:
        if container.running or not container.reason:
            continue
        found = classify_pod(ExitEvidence(container_reason=container.reason))
        if container.reason in NOT_STARTING or (found and found.kind == "not_startable"):
            return f"its container {container.name} does not start: {container.reason}"
    return ""


def collect_events(observed: Observed, now: float) -> Iterator[tuple[str, Event]]:
    """Events about pods that do not start, once each time that some begin to wait."""
    unplaced = [pod for pod in _waiting_pods(observed) if pod.unschedulable]
    since = min((pod.unschedulable_since for pod in unplaced), default=now)
    if now - since >= UNSCHEDULABLE_SECONDS:
        first = unplaced[0]
        message = (
            f"{_format_names(unplaced)}: no node for {now - since:.0f} s: {first.unschedulable}; "
            "the job waits until there is one (failures.suspend-after ends the wait)"
        )
        event = Event(names.EVENT_POD_UNSCHEDULABLE, message, warning=True, at=now)
        yield f"unplaced:{since:.0f}", event
    preparing = [pod for pod in _waiting_pods(observed) if _is_preparing(pod)]
    since = min((pod.scheduled_at for pod in preparing), default=now)
    if now - since >= PREPARING_SECONDS:
        first = preparing[0]
        message = (
            f"{_format_names(preparing)}: no container has started for {now - since:.0f} s: the "
            "image is large, or a volume, Secret or ConfigMap is not there; `kubectl describe pod "
            f"{first.name}` says which"
        )
        event = Event(names.EVENT_POD_PENDING, message, warning=True, at=now)
        yield f"preparing:{since:.0f}", event


def delay(observed: Observed, now: float) -> float | None:
    """Seconds until something is to be told; None if nobody waits, or it is told."""
    ends = [
        pod.unschedulable_since + UNSCHEDULABLE_SECONDS
        for pod in _waiting_pods(observed)
        if pod.unschedulable
    ]
    waiting = filter(_is_preparing, _waiting_pods(observed))
    ends += [pod.scheduled_at + PREPARING_SECONDS for pod in waiting]
    return min((end - now for end in ends if end > now), default=None)


def _waiting_pods(observed: Observed) -> list[Pod]:
    if observed.job.inactive:
        return []
    return [pod for pod in observed.pods if not pod.deleting]


def _is_preparing(pod: Pod) -> bool:
    """Whether its node is at work on it, and no container has come of that yet."""
    waits = all(not one.running and one.reason in _PREPARING for one in pod.containers)
    return bool(pod.scheduled_at) and pod.phase == "Pending" and waits


def _format_names(pods: list[Pod]) -> str:
    more = len(pods) - _MAX_NAMED
    found = ", ".join(pod.name for pod in pods[:_MAX_NAMED])
    return f"{found} and {more} more" if more > 0 else found
