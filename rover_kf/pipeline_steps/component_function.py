# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline component's function as the trainer of an elastic job; pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest

_VERSION = f"{names.KUBEFLOW_GROUP}/{names.KUBEFLOW_VERSION}"


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentFunction:
    """What shall run in each training process, and how many of them."""

    function: str
    source: str
    """Python that defines it."""
    image: str
    """With Python >= 3.10, torch and what the function imports."""
    min_replicas: int = 1
    max_replicas: int = 1
    processes: int = 1
    """Training processes of a replica."""
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Annotations without their prefix, such as ``{"checkpoint.every": "50"}``."""

    def manifest(self, parameters: Mapping[str, Any]) -> Manifest:
        """The job that calls the function with these parameters in every training process."""
        order = {"source": self.source, "function": self.function, "parameters": dict(parameters)}
        variable = {"name": names.ENV_COMPONENT, "value": json.dumps(order, sort_keys=True)}
        limits = {"memory": self.memory, "nvidia.com/gpu": str(self.gpus or "")}
        resources = {
            "requests": {key: value for key, value in {"cpu": self.cpu, **limits}.items() if value},
            "limits": {key: value for key, value in limits.items() if value},
        }
        container = {
            "name": names.PYTORCH_CONTAINER,
            "image": self.image,
            "command": ["python", "-m", "rover_kf.trainer.component"],
            "env": [variable],
            "resources": {key: value for key, value in resources.items() if value},
        }
        worker = {
            "replicas": self.max_replicas,
            "restartPolicy": "ExitCode",
            "template": {"spec": {"containers": [container]}},
        }
        annotations = {f"{names.PREFIX}{key}": value for key, value in self.policy.items()}
        return {
            "apiVersion": _VERSION,
            "kind": names.PYTORCHJOB,
            "metadata": {
                "name": self.function.replace("_", "-"),
                "labels": {names.INJECT_LABEL: "true"},
                "annotations": annotations,
            },
            "spec": {
                "nprocPerNode": str(self.processes),
                "elasticPolicy": {
                    "minReplicas": self.min_replicas,
                    "maxReplicas": self.max_replicas,
                },
                "pytorchReplicaSpecs": {"Worker": worker},
            },
        }
