# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests for tests: a plain PyTorchJob as a user would write it, with what a test changes."""

from __future__ import annotations

import copy
import json
from typing import Any

from rover_kf.api import codec, names
from rover_kf.api.policy import PolicySections

PREFIX = "rover-kf.io/"


def make_job(
    *,
    name: str = "digits",
    workers: int | None = 2,
    masters: int = 0,
    command: list[str] | None = None,
    args: list[str] | None = None,
    policy: dict[str, str] | None = None,
    memory: str | None = "1Gi",
    mount: dict[str, Any] | None = None,
    volume: dict[str, Any] | None = None,
    elastic: tuple[int, int] | None = None,
    kind: str = "PyTorchJob",
) -> dict[str, Any]:
    """A labelled job; ``policy`` keys are annotations without the prefix."""
    container = "pytorch" if kind == "PyTorchJob" else "tensorflow"
    trainer: dict[str, Any] = {"name": container, "image": "python-torch:latest"}
    trainer["command"] = ["torchrun", "train.py"] if command is None else command
    if not trainer["command"]:
        del trainer["command"]
    if args is not None:
        trainer["args"] = args
    if memory:
        trainer["resources"] = {"limits": {"memory": memory}}
    pod: dict[str, Any] = {"containers": [trainer]}
    if mount:
        trainer["volumeMounts"] = [mount]
        pod["volumes"] = [
            {"name": mount["name"], **(volume or {"persistentVolumeClaim": {"claimName": "c"}})}
        ]
    specs = {}
    if masters:
        specs["Master"] = {"replicas": masters, "template": {"spec": copy.deepcopy(pod)}}
    if workers is not None:
        specs["Worker"] = {"replicas": workers, "template": {"spec": pod}}
    key = "pytorchReplicaSpecs" if kind == "PyTorchJob" else "tfReplicaSpecs"
    spec: dict[str, Any] = {key: specs}
    if elastic:
        spec["elasticPolicy"] = {"minReplicas": elastic[0], "maxReplicas": elastic[1]}
    annotations = {PREFIX + key: value for key, value in (policy or {}).items()}
    metadata = {"name": name, "namespace": "team", "labels": {PREFIX + "inject": "true"}}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


def pod_of(manifest: dict[str, Any], kind: str = "Worker") -> dict[str, Any]:
    """The pod template's spec of one replica type."""
    return manifest["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]


def trainer_of(manifest: dict[str, Any], kind: str = "Worker") -> dict[str, Any]:
    """The container that trains."""
    return next(c for c in pod_of(manifest, kind)["containers"] if c["name"] == "pytorch")


def container_of(manifest: dict[str, Any], name: str, kind: str = "Worker") -> dict[str, Any]:
    """One of the init containers."""
    return next(c for c in pod_of(manifest, kind)["initContainers"] if c["name"] == name)


def environment_of(container: dict[str, Any]) -> dict[str, Any]:
    """Variables by name; those from fields as the field's path."""
    return {
        item["name"]: item["value"]
        if "value" in item
        else item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container.get("env", ())
    }


def policy_of(variables: dict[str, Any]) -> PolicySections:
    """The policy among a sidecar's variables."""
    return codec.loads(PolicySections, variables[names.ENV_POLICY])


def three_way_patch(original: Any, modified: Any, current: Any) -> Any:
    """What ``kubectl apply`` sends for a custom resource, applied to the live object.

    A JSON merge patch: keys of the file win, keys that the file has lost go, arrays are replaced
    whole; what only the live object has stays.
    """
    if not (isinstance(modified, dict) and isinstance(current, dict)):
        return json.loads(json.dumps(modified))
    before = original if isinstance(original, dict) else {}
    merged = {key: value for key, value in current.items() if key in modified or key not in before}
    for key, value in modified.items():
        merged[key] = three_way_patch(before.get(key), value, current.get(key))
    return merged
