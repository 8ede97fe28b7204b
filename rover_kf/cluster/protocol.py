# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What client, reconcilers and components need of the place where jobs run.

``cluster.kubernetes.KubernetesCluster`` and ``cluster.local.LocalCluster`` satisfy it;
tests/unit/cluster/conformance.py is run on both. Reads return frozen views; writes are explicit.
Where the place bounds nothing, as one machine does not, the bodies here are the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from rover_kf.api import names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus, read_status


class Cluster(Protocol):
    """Where jobs run: job objects, pods with the coordinator among them, Events."""

    # -- jobs --------------------------------------------------------------------------------------

    def create_job(self, manifest: Manifest) -> ObservedJob:
        """Create the job as given; never injects by itself.

        Raises:
            JobExists: an object of that name is there.
            InputError: the place refuses the manifest; the message is its own.
        """

    def get_job(self, key: JobKey) -> ObservedJob:
        """Read one job, or raise NoSuchJob."""

    def list_jobs(self, namespace: str | None = None) -> tuple[ObservedJob, ...]:
        """Labelled jobs (INJECT_LABEL) of a namespace, or of all with None."""

    def patch_job(
        self, key: JobKey, patch: Mapping[str, Any], *, resource_version: str | None = None
    ) -> ObservedJob:
        """JSON merge patch (RFC 7386) of the job.

        Raises:
            NoSuchJob: there is none.
            Conflict: resource_version is given and is not the current one.
        """

    def dry_run_patch(self, key: JobKey, patch: Mapping[str, Any]) -> str:
        """Why a merge patch of the job would be refused; empty if it would not. Changes nothing."""
        del key, patch
        return ""

    def delete_job(self, key: JobKey) -> None:
        """Delete the job; its pods end after it. Deleting a job that is not there is no error."""

    # -- pods --------------------------------------------------------------------------------------

    def list_pods(self, key: JobKey) -> tuple[Pod, ...]:
        """The job's pods in replica order."""

    def delete_pod(self, key: JobKey, pod: str) -> None:
        """Delete a pod with its grace period; the operator makes another."""

    def force_delete_pod(self, key: JobKey, pod: Pod) -> None:
        """Remove a pod's object without waiting for its node; one that is gone is no error.

        A pod of that name that is another one by now is a Conflict.
        """

    def unreachable_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """Those of the nodes that are not heard any more, and since when (Unix seconds)."""
        del nodes
        return {}

    def cordon_node(self, name: str, reason: str) -> None:
        """Keep new pods, whosever they are, from a node until somebody gives it back.

        Raises:
            NoSuchJob: there is no such node.
            InputError: it is refused, or there is nothing to keep away from.
        """

    def node_sizes(self, resource: str) -> tuple[str, ...]:
        """What nodes have of a resource, as quantities, each amount once; empty: no bound."""
        del resource
        return ()

    def namespace_objects(self, namespace: str) -> NamespaceObjects:
        """What bounds jobs of a namespace; what may not be read is named, and bounds nothing."""
        del namespace
        return NamespaceObjects()

    def list_nodes(self) -> tuple[Manifest, ...] | None:
        """All nodes as plain objects; None where nothing bounds; InputError if it is refused."""
        return None

    def list_all_pods(self) -> Iterator[Manifest]:
        """Pods of all namespaces that have not ended, page by page; raises as ``list_nodes``."""
        return iter(())

    def supports_pod_resize(self) -> bool:
        """Whether a pod's resources can be changed while it runs."""
        return True

    def resize_pod(
        self, key: JobKey, pod: Pod, container: str, resources: Mapping[str, Any]
    ) -> None:
        """Change what a container of a running pod asks for and may use.

        Raises:
            NoSuchJob: the pod is gone.
            InputError: it is refused, by a quota or by a rule of the place.
        """
        del key, pod, container, resources

    def read_log(self, key: JobKey, pod: str, container: str, *, tail: int | None = None) -> str:
        """What the container printed so far (the last ``tail`` lines), or NoSuchJob."""

    def call_coordinator(
        self, key: JobKey, method: str, path: str, body: object = None, *, pod: Pod | None = None
    ) -> bytes:
        """One HTTP request to a coordinator; body is encoded by api.codec.

        It is the job's coordinator, or that of ``pod``, which is a world of its own.

        Raises:
            ClusterUnavailable: it cannot be reached (not started, ended, replaced).
        """

    # -- events ------------------------------------------------------------------------------------

    def emit(self, key: JobKey, event: Event) -> None:
        """Put an Event on the job; a job that is gone is no error."""

    def list_events(self, key: JobKey) -> tuple[Event, ...]:
        """Events of the job, oldest first, whoever wrote them."""


def fetch_status(
    cluster: Cluster, key: JobKey, *, after: int = 0, pod: Pod | None = None
) -> CoordinatorStatus:
    """Return the status of a job's coordinator, or of that of ``pod``; raises as the request.

    Its Events have a sequence above ``after``; names.NO_EVENTS: it has none of them.

    Raises:
        ProtocolError: the answer is no status, or is out of bounds. The job's pod wrote it.
    """
    path = f"{names.PATH_STATUS}?after={after}"
    return read_status(cluster.call_coordinator(key, "GET", path, pod=pod))
