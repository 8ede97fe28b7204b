# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the pods' own states tell that the coordinator cannot see: ends that Kubernetes made; pure.

Which they are say the rules of elastic.failures.pods, that docs/failures.md lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Container, Event, Pod
from rover_kf.elastic.failures.classify import classify_pod
from rover_kf.elastic.failures.evidence import Evidence
from rover_kf.elastic.failures.pods import KILLED


def seen(pods: tuple[Pod, ...], now: float) -> Iterator[tuple[str, Event]]:
    """Events about pods and containers that were ended, each with the key it is told once under."""
    for pod in pods:
        lost = classify_pod(Evidence(pod=pod.reasons, message=pod.message))
        if lost is not None:
            message = f"{pod.name}: {lost.kind}: {lost.reason}"
            event = Event(names.EVENT_POD_LOST, message, warning=True, at=now)
            yield f"lost:{pod.uid[:8]}:{lost.kind}", event
        for container in pod.containers:
            message = _message(pod, container, ending=pod.deleting or lost is not None)
            if message:
                key = f"died:{pod.uid[:8]}:{container.name}:{container.restarts}"
                yield key, Event(names.EVENT_PROCESS_FAILED, message, warning=True, at=now)


def _message(pod: Pod, container: Container, *, ending: bool) -> str:
    known = Evidence(container.exit_code, container=container.reason, message=container.message)
    verdict = classify_pod(known)
    # A pod that ends has its containers killed if they do not hear.
    if verdict is not None and not (ending and verdict.kind == KILLED.kind):
        return (
            f"{pod.name}: {verdict.kind}: container {container.name} "
            f"(restart {container.restarts}) {verdict.reason}"
        )
    if container.name == names.SIDECAR_CONTAINER and container.exit_code:
        return (
            f"{pod.name}: the rover-kf sidecar ended with {container.exit_code} "
            f"({container.reason or 'no reason given'}); its log says why"
        )
    return ""
