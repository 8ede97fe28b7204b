# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on a real cluster: the implementation of cluster.protocol over the API server.

Every call is one or two requests and holds no state between them, so one instance may be used by
several threads. Nothing here retries: callers are level-triggered and ask again. What the API
server does not let us read is logged once and not at every look.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import kubernetes.client

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob, Pod
from rover_kf.cluster.kubernetes import conversion as objects
from rover_kf.cluster.kubernetes.api import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    KubernetesApi,
    resource_path,
)
from rover_kf.cluster.kubernetes.transport import ApiProxyTransport, Transport
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.job_kind import JobKind

LABELLED = {"labelSelector": f"{names.INJECT_LABEL}=true"}
_SILENCE, _SIZES = "whether nodes are silent", "what nodes have"
"""Reads that the caller may lack the right to."""
_AUTOSCALING = "/apis/autoscaling/v2"
_ALIVE = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
LOG = logging.getLogger(__name__)


class KubernetesCluster:
    """A cluster.protocol.Cluster.

    Without a transport, coordinators are reached through the API server, for reads only.
    """

    def __init__(
        self, client: kubernetes.client.ApiClient, transport: Transport | None = None
    ) -> None:
        self.api = self._api = KubernetesApi(client)
        """For the few requests that are not about jobs (controller/webhook_certificate.py)."""
        self._transport = transport or ApiProxyTransport(self._api)
        self._denied: dict[str, object] = {}
        """Reads that were refused the last time; one is logged by the thread that adds it."""

    # -- jobs --------------------------------------------------------------------------------------

    def create_job(self, manifest: Manifest) -> ObservedJob:
        """Create the job; a manifest without namespace goes to ``default``."""
        metadata = manifest["metadata"]
        name = metadata.get("name") or metadata.get("generateName", "")
        key = JobKey(metadata.get("namespace", "default"), name, manifest["kind"])
        try:
            reply = self._api.request("POST", _jobs(key), what=str(key), body=manifest)
        except errors.NoSuchJob as cause:  # the namespace is not there
            raise errors.InputError(str(cause)) from cause
        return objects.parse_job(reply)

    def get_job(self, key: JobKey) -> ObservedJob:
        """Read one job."""
        return objects.parse_job(self._api.request("GET", _job(key), what=str(key)))

    def list_jobs(self, namespace: str | None = None) -> tuple[ObservedJob, ...]:
        """Labelled PyTorchJobs, then other kinds, of a namespace, or of all with None.

        A cluster need not know the other kinds, nor need a user's role name them.
        """
        default, *others = registry.job_kinds()
        found = list(self._of_kind(namespace, default))
        for job_kind in others:
            what = f"{job_kind.kind}s"
            try:
                found += self._of_kind(namespace, job_kind)
            except (errors.InputError, errors.KindNotServed) as refusal:
                self._log_denied(what, "other kinds alone are listed", refusal)
            else:
                self._denied.pop(what, None)
        return tuple(found)

    def _of_kind(self, namespace: str | None, job_kind: JobKind) -> Iterator[ObservedJob]:
        what = f"{job_kind.plural} of {namespace or 'all namespaces'}"
        path = job_kind.path(namespace)
        for item in self._api.items(path, what=what, query=LABELLED):
            yield objects.parse_job(job_kind.identify(item))

    def patch_job(
        self, key: JobKey, patch: Mapping[str, Any], *, resource_version: str | None = None
    ) -> ObservedJob:
        """JSON merge patch of the job."""
        body = dict(patch)
        if resource_version is not None:
            metadata = {**(body.get("metadata") or {}), "resourceVersion": resource_version}
            body["metadata"] = metadata
        reply = self._api.request(
            "PATCH", _job(key), what=str(key), body=body, content_type=MERGE_PATCH
        )
        return objects.parse_job(reply)

    def dry_run_patch(self, key: JobKey, patch: Mapping[str, Any]) -> str:
        """Why the API server or a webhook would refuse a merge patch of the job; a dry run."""
        query: dict[str, str | int | bool] = {"dryRun": "All"}
        body, kind = dict(patch), MERGE_PATCH
        path, what = _job(key), str(key)
        try:
            self._api.request("PATCH", path, what=what, query=query, body=body, content_type=kind)
        except (errors.InputError, errors.NoSuchJob) as refusal:
            return str(refusal)
        return ""

    def delete_job(self, key: JobKey) -> None:
        """Delete the job; the garbage collector ends its pods."""
        body = {"propagationPolicy": "Background"}
        with contextlib.suppress(errors.NoSuchJob):
            self._api.request("DELETE", _job(key), what=str(key), body=body)

    # -- pods --------------------------------------------------------------------------------------

    def list_pods(self, key: JobKey) -> tuple[Pod, ...]:
        """The job's pods in replica order."""
        operator = f"{key.kind.lower()}-controller"
        selector = f"{names.JOB_NAME_LABEL}={key.name},{names.OPERATOR_NAME_LABEL}={operator}"
        found = self._api.items(
            _in_namespace(key.namespace, "pods"),
            what=f"pods of {key}",
            query={"labelSelector": selector},
        )
        return objects.parse_pods(found)

    def delete_pod(self, key: JobKey, pod: str) -> None:
        """Delete a pod with its grace period; one that is gone is no error."""
        self._delete_pod(key, pod, None)

    def _delete_pod(self, key: JobKey, pod: str, body: object | None) -> None:
        with contextlib.suppress(errors.NoSuchJob):
            self._api.request("DELETE", _pod(key, pod), what=f"pod {pod} of {key}", body=body)

    def force_delete_pod(self, key: JobKey, pod: Pod) -> None:
        """Remove a pod's object without waiting for its node; one that is gone is no error.

        A kind may need a last status of the pod first.

        Raises:
            Conflict: a pod of that name is another one by now.
            InputError: that is refused.
        """
        path, what = _pod(key, pod.name), f"pod {pod.name} of {key}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        with contextlib.suppress(errors.NoSuchJob):
            status = registry.kind_named(key.kind).lost_pod_status(pod)
            if status is not None:
                self._api.request(
                    "PATCH", f"{path}/status", what=what, body=status, content_type=MERGE_PATCH
                )
            self._api.request("DELETE", path, what=what, body=body)

    def supports_pod_resize(self) -> bool:
        """Whether the API server has pods/resize: from Kubernetes 1.33 on."""
        found = self._api.request("GET", "/api/v1", what="resources of the API server")
        return any(item["name"] == "pods/resize" for item in found.get("resources") or ())

    def resize_pod(
        self, key: JobKey, pod: Pod, container: str, resources: Mapping[str, Any]
    ) -> None:
        """Change what a container of a running pod asks for and may use."""
        path = f"{_pod(key, pod.name)}/resize"
        changed = [{"name": container, "resources": dict(resources)}]
        body = {"metadata": {"uid": pod.uid}, "spec": {"containers": changed}}
        what = f"pod {pod.name} of {key}"
        self._api.request("PATCH", path, what=what, body=body, content_type=STRATEGIC_PATCH)

    def read_log(self, key: JobKey, pod: str, container: str, *, tail: int | None = None) -> str:
        """What the container printed so far; InputError if it has not started."""
        query: dict[str, str | int | bool] = {"container": container}
        if tail is not None:
            query["tailLines"] = tail
        path = f"{_pod(key, pod)}/log"
        return self._api.text(path, what=f"log of {pod}/{container} of {key}", query=query)

    def call_coordinator(
        self, key: JobKey, method: str, path: str, body: object = None, *, pod: Pod | None = None
    ) -> bytes:
        """One HTTP request to the job's coordinator, its first pod's sidecar, or of ``pod``."""
        data = None if body is None else codec.dumps(body)
        return self._transport.request(key, pod or self._first_pod(key), method, path, data)

    def _first_pod(self, key: JobKey) -> Pod:
        pods = self.list_pods(key)
        if not pods or pods[0].replica_index != 0:
            raise errors.ClusterUnavailable(f"{key} has no first pod yet: retry when it runs")
        return pods[0]

    # -- nodes -------------------------------------------------------------------------------------

    def _log_denied(self, what: str, meaning: str, refusal: Exception) -> None:
        """Log what is not read, and what is done without it, once until it is read again."""
        added = object()
        if self._denied.setdefault(what, added) is added:
            LOG.info("%s: not looked at, said once: %s; %s", what, refusal, meaning)

    def unreachable_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """Those of the nodes that Kubernetes hears no more, and since when (Unix seconds).

        None for who may not read nodes: a user who watches a job; then Kubernetes itself removes
        their pods, after minutes.
        """
        found: dict[str, float] = {}
        for name in sorted(nodes):
            try:
                node = self._api.request("GET", _node(name), what=f"node {name}")
            except errors.NoSuchJob:
                continue  # Kubernetes itself removes the pods of a node that is no more
            except errors.InputError as refusal:
                meaning = "pods of a node that fell silent go when Kubernetes removes them"
                self._log_denied(_SILENCE, meaning, refusal)
                return found
            self._denied.pop(_SILENCE, None)
            since = objects.unreachable_since(node)
            if since is not None:
                found[name] = since
        return found

    def cordon_node(self, name: str, reason: str) -> None:
        """Mark a node as unschedulable, with the reason in an annotation."""
        why = {"annotations": {names.CORDONED_ANNOTATION: reason}}
        body = {"metadata": why, "spec": {"unschedulable": True}}
        path, what = _node(name), f"node {name}"
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

        quotas = read(f"quotas of {namespace}", _in_namespace(namespace, "resourcequotas"))
        scalers = resource_path(_AUTOSCALING, "namespaces", namespace, "horizontalpodautoscalers")
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
            self._log_denied(_SIZES, meaning, refusal)
            return ()
        self._denied.pop(_SIZES, None)
        return objects.node_sizes(found, resource)

    # -- events ------------------------------------------------------------------------------------

    def emit(self, key: JobKey, event: Event) -> None:
        """Put an Event on the job; a job that is gone, or a line told before, is no error."""
        path = _in_namespace(key.namespace, "events")
        with contextlib.suppress(errors.NoSuchJob, errors.JobExists):
            body = objects.event_body(self.get_job(key), event, time.time())
            self._api.request("POST", path, what=f"event of {key}", body=body)

    def list_events(self, key: JobKey) -> tuple[Event, ...]:
        """Events of the job, oldest first, whoever wrote them; none once the job is gone."""
        try:
            uid = self.get_job(key).uid
        except errors.NoSuchJob:
            return ()
        found = self._api.items(
            _in_namespace(key.namespace, "events"),
            what=f"events of {key}",
            query={"fieldSelector": f"involvedObject.uid={uid}"},
        )
        return tuple(sorted(map(objects.parse_event, found), key=lambda event: event.at))


def _jobs(key: JobKey) -> str:
    return registry.kind_named(key.kind).path(key.namespace)


def _job(key: JobKey) -> str:
    return resource_path(_jobs(key), key.name)


def _pod(key: JobKey, name: str) -> str:
    return _in_namespace(key.namespace, "pods", name)


def _in_namespace(namespace: str, *segments: str) -> str:
    return resource_path("/api/v1", "namespaces", namespace, *segments)


def _node(name: str) -> str:
    return resource_path("/api/v1", "nodes", name)
