# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a PyTorchJob and a TFJob keep what rover-kf reads; the seam for further kinds of job.

Every other module asks the adapter instead of naming a kind's keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest

API_VERSION = f"{names.KUBEFLOW_GROUP}/{names.KUBEFLOW_VERSION}"


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One replica type of a job, as the manifest states it."""

    key: str
    """As written in the manifest (``Worker``)."""
    kind: str
    """``master``, ``chief``, ``worker``, ``ps``, ``evaluator``: the pod's label."""
    replicas: int
    """With the Training Operator's default of 1 filled in."""
    spec: Mapping[str, Any]
    path: str
    """Dotted path of the spec inside the manifest, for errors."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobAdapter:
    """What differs between kinds of job."""

    kind: str
    plural: str
    specs: str
    """Key of the replica specs below ``spec``."""
    container: str
    """Name of the container that trains."""
    kinds: tuple[str, ...]
    """Replica types in replica order, lower case."""
    leading_types: tuple[str, ...]
    """Replica types that come before the workers and are never scaled."""
    restart_policy: str
    """What the operator takes where none is stated."""
    writes_files: bool = False
    """Whether its states are files, which lie in memory until they are saved."""

    def replicas(self, manifest: Manifest) -> tuple[Replica, ...]:
        """The job's replica types in replica order; the manifest must have been validated."""
        found = {
            str(key).lower(): Replica(
                key=key,
                kind=str(key).lower(),
                replicas=int(spec.get("replicas") or 1),
                spec=spec,
                path=f"spec.{self.specs}.{key}",
            )
            for key, spec in manifest["spec"][self.specs].items()
        }
        return tuple(found[kind] for kind in self.kinds if kind in found)

    def masters(self, manifest: Manifest) -> int:
        """How many pods come before the workers in replica order."""
        return sum(
            item.replicas for item in self.replicas(manifest) if item.kind in self.leading_types
        )

    def standalone_types(self, manifest: Manifest) -> frozenset[str]:
        """Replica types of which each pod is a world of its own and holds no state of the job.

        Evaluators, and where there are parameter servers these and the workers: TensorFlow's
        servers, which the chief's program drives. They come and go without the others.
        """
        kinds = {item.kind for item in self.replicas(manifest)}
        return frozenset({"evaluator", *(("ps", "worker") if "ps" in kinds else ())})

    def workers(self, manifest: Manifest) -> int:
        """Worker replicas; 0 if the job has no workers."""
        return sum(item.replicas for item in self.replicas(manifest) if item.kind == "worker")

    def trainer(self, replica: Replica) -> Mapping[str, Any]:
        """The container that trains."""
        containers = replica.spec["template"]["spec"]["containers"]
        return next(item for item in containers if item["name"] == self.container)


PYTORCH = JobAdapter(
    kind=names.PYTORCHJOB,
    plural=names.PYTORCHJOBS,
    specs="pytorchReplicaSpecs",
    container=names.PYTORCH_CONTAINER,
    kinds=("master", "worker"),
    leading_types=("master",),
    restart_policy="OnFailure",
)
TENSORFLOW = JobAdapter(
    kind=names.TFJOB,
    plural=names.TFJOBS,
    specs="tfReplicaSpecs",
    container=names.TENSORFLOW_CONTAINER,
    kinds=("chief", "master", "worker", "ps", "evaluator"),
    leading_types=("chief", "master"),
    restart_policy="Never",
    writes_files=True,
)


def adapter_for(manifest: Manifest, *, source: str = "manifest") -> JobAdapter:
    """The adapter of a manifest's kind.

    Raises:
        ManifestError: it is neither a PyTorchJob nor a TFJob.
    """
    if not isinstance(manifest, Mapping):
        raise errors.ManifestError("document", manifest, allowed="a mapping", source=source)
    kind = manifest.get("kind")
    for adapter in (PYTORCH, TENSORFLOW):
        if kind == adapter.kind:
            break
    else:
        raise errors.ManifestError("kind", kind, allowed="PyTorchJob or TFJob", source=source)
    version = manifest.get("apiVersion")
    if version != API_VERSION:
        raise errors.ManifestError("apiVersion", version, allowed=API_VERSION, source=source)
    return adapter
