# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the pods' own states tell that the coordinator cannot see: kills by the kubelet; pure."""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Container, Event, Pod


def seen(pods: tuple[Pod, ...], now: float) -> Iterator[tuple[str, Event]]:
    """Events about containers that were killed, each with the key under which it is told once."""
    for pod in pods:
        for container in pod.containers:
            message = _message(pod, container)
            if message:
                key = f"died:{pod.uid[:8]}:{container.name}:{container.restarts}"
                yield key, Event(names.EVENT_PROCESS_FAILED, message, warning=True, at=now)


def _message(pod: Pod, container: Container) -> str:
    if container.reason == "OOMKilled":
        return (
            f"{pod.name}: container {container.name} was killed for memory "
            f"(restart {container.restarts}); raise its memory limit"
        )
    if container.name == names.SIDECAR_CONTAINER and container.exit_code:
        return (
            f"{pod.name}: the rover-kf sidecar ended with {container.exit_code} "
            f"({container.reason or 'no reason given'}); its log says why"
        )
    return ""
