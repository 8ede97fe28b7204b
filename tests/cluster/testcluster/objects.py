# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Small objects that several tests submit, and questions about what became of them."""

from __future__ import annotations

import json
from typing import Any

from testcluster.images import TOOLBOX_IMAGE

Object = dict[str, Any]

_NODE = "kubernetes.io/hostname"


def pytorchjob(
    name: str,
    namespace: str,
    command: list[str],
    *,
    workers: int = 2,
    master: bool = False,
    elastic: tuple[int, int] | None = None,
    cpu: str = "200m",
    memory: str = "1Gi",
) -> Object:
    """A PyTorchJob as a user would write it, its image still to be filled in."""

    def replica(count: int) -> Object:
        container: Object = {
            "name": "pytorch",
            "image": "filled-in-later",
            "command": list(command),
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        }
        return {
            "replicas": count,
            "restartPolicy": "OnFailure",
            "template": {"spec": {"containers": [container]}},
        }

    specs = {"Worker": replica(workers)}
    if master:
        specs["Master"] = replica(1)
    spec: Object = {"pytorchReplicaSpecs": specs}
    if elastic:
        spec["elasticPolicy"] = {
            "rdzvBackend": "c10d",
            "minReplicas": elastic[0],
            "maxReplicas": elastic[1],
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def toolbox(
    name: str,
    namespace: str,
    command: list[str],
    *,
    node: str | None = None,
    image: str = TOOLBOX_IMAGE,
) -> Object:
    """A pod with busybox that satisfies the restricted profile, on a node of one's choice."""
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Object = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def apart(label: str, value: str) -> Object:
    """Affinity of pods that rather have a node each, by a label that they all have."""
    others = {"labelSelector": {"matchLabels": {label: value}}, "topologyKey": _NODE}
    wish = {"weight": 100, "podAffinityTerm": others}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def apply(cluster, documents) -> None:
    """kubectl apply of plain objects."""
    listing = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(listing))


def get(cluster, namespace: str, kind: str, name: str = "") -> Object:
    """One object, or the list of all with an empty name."""
    return json.loads(
        cluster.kubectl("-n", namespace, "get", kind, *([name] if name else []), "-o", "json")
    )


def job_conditions(job: Object) -> set[str]:
    """Types of the job's true conditions."""
    conditions = job.get("status", {}).get("conditions") or []
    return {item["type"] for item in conditions if item["status"] == "True"}


def pod_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
