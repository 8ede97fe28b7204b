# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a kind of job states where, and how it behaves; the rest of rover-kf asks the kind.

The methods read the Training Operator's form of a job. A kind of another form overrides them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest, Pod
from rover_kf.api.policy import PolicySections

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of job."""

    kind: str
    plural: str
    api_version: str = API_VERSION
    """Group and version."""
    specs: str
    """Key of the replica specs below ``spec``."""
    container: str
    """Name of the container that trains."""
    kinds: tuple[str, ...]
    """Replica types in replica order, lower case; the first that a job has coordinates it."""
    leading_types: tuple[str, ...]
    """Replica types that come before the workers and are never scaled."""
    restart_policy: str
    """What the operator takes where none is stated."""
    elastic: bool
    """Whether pods of the world come and go, so that a lost or deleted one is replaced."""
    writes_files: bool = False
    """Whether its states are files, which lie in memory until they are saved."""

    @property
    def group(self) -> str:
        """The API group."""
        return self.api_version.partition("/")[0]

    def path(self, namespace: str | None) -> str:
        """Path of the jobs of a namespace on the API server, or of all without one."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.api_version}{where}/{self.plural}"

    @property
    def operator(self) -> str:
        """The controller that labels the kind's pods as its own."""
        return f"{self.kind.lower()}-controller"

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

    def replica_counts(self, manifest: Manifest) -> dict[str, int]:
        """Replicas by type in lower case, as the manifest lists them; also of an invalid one."""
        specs = (manifest.get("spec") or {}).get(self.specs) or {}
        return {str(key).lower(): int(spec.get("replicas") or 1) for key, spec in specs.items()}

    def replicas_patch(self, counts: Mapping[str, int]) -> dict[str, object]:
        """Merge patch of the job's spec with numbers of replicas; empty without any.

        Args:
            counts: by replica type as in the spec.
        """
        specs = {key: {"replicas": count} for key, count in counts.items()}
        return {self.specs: specs} if specs else {}

    def masters(self, manifest: Manifest) -> int:
        """How many pods come before the workers in replica order."""
        return sum(
            item.replicas for item in self.replicas(manifest) if item.kind in self.leading_types
        )

    def workers(self, manifest: Manifest) -> int:
        """Worker replicas; 0 if the job has no workers."""
        return sum(item.replicas for item in self.replicas(manifest) if item.kind == "worker")

    def trainer(self, replica: Replica) -> Mapping[str, Any]:
        """The container that trains."""
        containers = replica.spec["template"]["spec"]["containers"]
        return next(item for item in containers if item["name"] == self.container)

    def is_suspended(self, manifest: Manifest) -> bool:
        """Whether the job is to have no pods."""
        return bool(self.run_policy(manifest).get("suspend"))

    def run_policy(self, manifest: Manifest) -> Mapping[str, Any]:
        """What the job states of its run; empty if it states nothing."""
        return (manifest.get("spec") or {}).get("runPolicy") or {}

    def suspend_patch(self, *, suspended: bool) -> dict[str, object]:
        """Merge patch of the job's spec."""
        return {"runPolicy": {"suspend": suspended}}

    def elastic_policy(self, manifest: Manifest) -> Mapping[str, Any]:
        """The bounds of Workers that the operator itself knows; empty without any."""
        return manifest["spec"].get("elasticPolicy") or {}

    def processes(self, manifest: Manifest) -> object:
        """Training processes of a pod, as the job states them; None if it does not."""
        return manifest["spec"].get("nprocPerNode")

    def phase(self, manifest: Manifest) -> str:
        """The last true condition of the status; empty without one."""
        conditions = (manifest.get("status") or {}).get("conditions") or ()
        true = [item["type"] for item in conditions if item.get("status") == "True"]
        return str(true[-1]) if true else ""

    def ended_at(self, manifest: Manifest) -> str | None:
        """When the last true condition ended the job, as the status states it."""
        status = manifest.get("status") or {}
        true = [item for item in status.get("conditions") or () if item.get("status") == "True"]
        found: str | None = (true or [{}])[-1].get("lastTransitionTime")
        return status.get("completionTime") or found

    def identify(self, item: Manifest) -> Manifest:
        """The item of a list with its version and kind, which lists leave out."""
        return {"apiVersion": self.api_version, "kind": self.kind, **item}

    def standalone_types(self, manifest: Manifest) -> frozenset[str]:  # noqa: ARG002
        """Replica types of which each pod is a world of its own and holds no state of the job."""
        return frozenset()

    def is_dynamic(self, manifest: Manifest) -> bool:  # noqa: ARG002
        """Whether its workers come and go, each a client of its own."""
        return False

    def dynamic_cluster_spec(self, manifest: Manifest, most_workers: int) -> str:  # noqa: ARG002
        """JSON of all addresses that such a job may ever have; empty for any other job.

        Args:
            manifest: of the job.
            most_workers: that it may have.
        """
        return ""

    def check(self, manifest: Manifest, policy: PolicySections, source: str) -> None:
        """Reject a job that could not train.

        Raises:
            ManifestError: its replica types do not go together.
            PolicyError: a policy value that the kind does not support.
        """

    def check_update(self, old: Manifest, new: Manifest, source: str) -> None:
        """Reject a change that the job does not survive.

        Raises:
            ManifestError: replicas that are fixed while the job runs.
        """

    def lost_pod_status(self, pod: Pod) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Merge patch for the status of a lost node's pod, before its deletion; None: none."""
        return None
