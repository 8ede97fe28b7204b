# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The nodes of a real cluster: who is silent, what they have, and keeping pods from one.

What the API server does not let us read is logged once and not at every look.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import Manifest
from rover_kf.cluster.kubernetes import conversion as objects
from rover_kf.cluster.kubernetes.api import MERGE_PATCH, KubernetesApi

_SILENCE, _SIZES = "whether nodes are silent", "what nodes have"

_ALIVE = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class KubernetesNodes:
    """The part of KubernetesCluster that is about nodes."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = self._api = api
        """For the few requests that are not about jobs (controller/webhook_certificate.py)."""
        self._denied_reads = DeniedReads()

    def unreachable_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """Those of the nodes that Kubernetes hears no more, and since when (Unix seconds).

        None for who may not read nodes: a user who watches a job; then Kubernetes itself removes
        their pods, after minutes.
        """
        found: dict[str, float] = {}
        for name in sorted(nodes):
            try:
                node = self._api.request("GET", f"/api/v1/nodes/{name}", what=f"node {name}")
            except errors.NoSuchJob:
                continue  # Kubernetes itself removes the pods of a node that is no more
            except errors.InputError as refusal:
                meaning = "pods of a node that fell silent go when Kubernetes removes them"
                self._denied_reads.record_denied(_SILENCE, meaning, refusal)
                return found
            self._denied_reads.record_allowed(_SILENCE)
            since = objects.unreachable_since(node)
            if since is not None:
                found[name] = since
        return found

    def cordon_node(self, name: str, reason: str) -> None:
        """Mark a node as unschedulable, with the reason in an annotation."""
        why = {"annotations": {names.CORDONED_ANNOTATION: reason}}
        body = {"metadata": why, "spec": {"unschedulable": True}}
        path, what = f"/api/v1/nodes/{name}", f"node {name}"
        self._api.request("PATCH", path, what=what, body=body, content_type=MERGE_PATCH)

    def namespace_objects(self, namespace: str) -> NamespaceObjects:
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
        return NamespaceObjects(quotas, read(f"autoscalers of {namespace}", scalers), tuple(unread))

    def list_nodes(self) -> tuple[Manifest, ...] | None:
        """All nodes as plain objects."""
        return tuple(self._api.items("/api/v1/nodes", what="nodes"))

    def list_all_pods(self) -> Iterator[Manifest]:
        """Pods of all namespaces that have not ended, page by page."""
        return self._api.iterate("/api/v1/pods", what="pods of all namespaces", query=_ALIVE)

    def node_sizes(self, resource: str) -> tuple[str, ...]:
        """What schedulable nodes have of a resource; nothing for those who may not read nodes."""
        try:
            found = self._api.items("/api/v1/nodes", what="nodes")
        except errors.InputError as refusal:
            meaning = "limits are raised without regard to the size of nodes"
            self._denied_reads.record_denied(_SIZES, meaning, refusal)
            return ()
        self._denied_reads.record_allowed(_SIZES)
        return objects.node_sizes(found, resource)


LOG = logging.getLogger(__name__)


class DeniedReads:
    """Reads that are refused; safe for threads."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def record_denied(self, what: str, meaning: str, refusal: Exception) -> None:
        """Log what is not read, and what is done without it, if the last read was not refused."""
        with self._lock:
            known = what in self._logged
            self._logged.add(what)
        if not known:
            LOG.info("%s: not looked at, said once: %s; %s", what, refusal, meaning)

    def record_allowed(self, what: str) -> None:
        """It was read: a refusal after this is news again."""
        with self._lock:
            self._logged.discard(what)
