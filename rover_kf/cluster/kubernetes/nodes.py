# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The nodes of a real cluster: who is silent, what they have, and keeping pods from one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.cluster_capacity import Objects
from rover_kf.api.jobs import Manifest
from rover_kf.cluster.kubernetes import conversion as objects
from rover_kf.cluster.kubernetes.api import MERGE_PATCH, Api
from rover_kf.cluster.kubernetes.denied_reads import Refusals

_SILENCE, _SIZES = "whether nodes are silent", "what nodes have"

_ALIVE = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class KubernetesNodes:
    """The part of KubernetesCluster that is about nodes.

    Args:
        api: of the cluster.
    """

    def __init__(self, api: Api) -> None:
        self.api = self._api = api
        """For the few requests that are not about jobs (controller/webhook_certificate.py)."""
        self._refusals = Refusals()

    def silent_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """Those of the nodes that Kubernetes hears no more, and since when (Unix seconds).

        None for who may not read nodes: a user who watches a job; then Kubernetes itself removes
        their pods, after minutes.
        """
        found: dict[str, float] = {}
        for name in sorted(nodes):
            try:
                node = self._api.request("GET", f"/api/v1/nodes/{name}", what=f"node {name}")
            except errors.JobNotFound:
                continue  # Kubernetes itself removes the pods of a node that is no more
            except errors.InputError as refusal:
                meaning = "pods of a node that fell silent go when Kubernetes removes them"
                self._refusals.refused(_SILENCE, meaning, refusal)
                return found
            self._refusals.read(_SILENCE)
            since = objects.silent_since(node)
            if since is not None:
                found[name] = since
        return found

    def cordon_node(self, name: str, reason: str) -> None:
        """Mark a node as unschedulable, with the reason in an annotation.

        Raises:
            JobNotFound: there is no such node.
            InputError: the controller may not; the message is the API server's.
        """
        why = {"annotations": {names.CORDONED_ANNOTATION: reason}}
        body = {"metadata": why, "spec": {"unschedulable": True}}
        path, what = f"/api/v1/nodes/{name}", f"node {name}"
        self._api.request("PATCH", path, what=what, body=body, content_type=MERGE_PATCH)

    def surroundings(self, namespace: str) -> Objects:
        """The namespace's quotas and autoscalers."""
        unread: list[str] = []

        def read(what: str, path: str) -> tuple[Manifest, ...]:
            try:
                return tuple(self._api.items(path, what=what))
            except (errors.InputError, errors.ClusterUnavailable) as refusal:
                unread.append(f"{what} could not be read and bound nothing: {refusal}")
                return ()

        place = f"namespaces/{namespace}"
        quotas = read(f"quotas of {namespace}", f"/api/v1/{place}/resourcequotas")
        scalers = f"/apis/autoscaling/v2/{place}/horizontalpodautoscalers"
        return Objects(quotas, read(f"autoscalers of {namespace}", scalers), tuple(unread))

    def list_nodes(self) -> tuple[Manifest, ...] | None:
        """All nodes as plain objects.

        Raises:
            InputError: the caller may not.
        """
        return tuple(self._api.items("/api/v1/nodes", what="nodes"))

    def every_pod(self) -> Iterator[Manifest]:
        """Pods of all namespaces that have not ended, page by page.

        Raises:
            InputError: the caller may not.
        """
        return self._api.pages("/api/v1/pods", what="pods of all namespaces", query=_ALIVE)

    def node_memory(self) -> tuple[str, ...]:
        """What schedulable nodes have for pods, as quantities, each amount once.

        Nothing for who may not read nodes.
        """
        return self._node_sizes("memory")

    def node_cpu(self) -> tuple[str, ...]:
        """The same of cores."""
        return self._node_sizes("cpu")

    def _node_sizes(self, resource: str) -> tuple[str, ...]:
        try:
            found = self._api.items("/api/v1/nodes", what="nodes")
        except errors.InputError as refusal:
            meaning = "limits are raised without regard to the size of nodes"
            self._refusals.refused(_SIZES, meaning, refusal)
            return ()
        self._refusals.read(_SIZES)
        return objects.sizes_of(found, resource)
