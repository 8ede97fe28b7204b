# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that matters more wants a worker's place."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator

from chaos.faults import Fault
from chaos.scene import Scene

_RATHER_FULL_MILLICORES = 150
"""Less than what a worker asks for: only by evicting one does the other pod fit."""


def preempt(role: str) -> Fault:
    """A pod of a higher PriorityClass takes the place of a worker on its node."""

    @contextlib.contextmanager
    def preempted(scene: Scene) -> Iterator[None]:
        name = f"chaos-{uuid.uuid4().hex[:6]}"
        priority = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 1000,
        }
        kubectl = scene.cluster.kubectl
        kubectl("create", "-f", "-", text=json.dumps(priority))
        try:
            kubectl("create", "-f", "-", text=json.dumps(_greedy(scene, role, name)))
            yield
        finally:
            kubectl("-n", scene.outside, "delete", "pod", name, "--ignore-not-found", "--now")
            kubectl("delete", "priorityclass", name)

    return preempted


def _greedy(scene: Scene, role: str, priority: str) -> dict[str, object]:
    node = scene.node_of(role)
    millicores = _free(scene, node) + _RATHER_FULL_MILLICORES
    container = {
        "name": "greedy",
        "image": scene.toolbox,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": f"{millicores}m"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": priority, "namespace": scene.outside},
        "spec": {
            "priorityClassName": priority,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def _free(scene: Scene, node: str) -> int:
    """Millicores of a node that nobody has asked for."""
    found = json.loads(scene.cluster.get_raw(f"/api/v1/nodes/{node}"))
    path = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
    pods = json.loads(scene.cluster.get_raw(path))["items"]
    asked = sum(_requests(pod["spec"]) for pod in pods)
    return _millicores(found["status"]["allocatable"]["cpu"]) - asked


def _requests(spec: dict[str, object]) -> int:
    # A native sidecar counts as a container does.
    running = [c for c in spec.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    both = [*spec["containers"], *running]
    return sum(
        _millicores(c.get("resources", {}).get("requests", {}).get("cpu", "0")) for c in both
    )


def _millicores(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000
