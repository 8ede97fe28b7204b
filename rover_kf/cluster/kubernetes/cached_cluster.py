# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real cluster whose jobs and pods are read from mirrors, for who looks at many jobs often.

Writes go to the API server and carry the version that was read, so that a plan made from what is
old by now is refused, as ever. What was written is read back at once. Pods that the Training
Operator made of jobs are found by their job.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import kubernetes.client

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import JobKey, ObservedJob, Pod
from rover_kf.cluster.kubernetes import conversion as objects
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.informer import Informer, ObjectKey
from rover_kf.cluster.kubernetes.kubernetes_cluster import LABELLED, KubernetesCluster
from rover_kf.cluster.kubernetes.transport import Transport
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.job_kind import JobKind

SURROUNDINGS_SECONDS = 10.0
"""How long what bounds the jobs of a namespace is believed, unless we change a job's size."""
_LEVEL = 1
"""Of zlib: a job becomes a fifth of its text."""
_POLL_SECONDS = 0.25


class CachedCluster(KubernetesCluster):
    """A cluster.protocol.Cluster for the controller, of one namespace or all.

    ``on_change`` gets the keys of jobs that somebody else has changed; the clock is monotonic.
    """

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        transport: Transport | None,
        on_change: Callable[[JobKey], None],
        clock: Callable[[], float] = time.monotonic,
        namespace: str = "",
    ) -> None:
        super().__init__(client, transport)
        self._clock = clock
        self._jobs = {
            job_kind.kind: _informer(self._api, job_kind, namespace, on_change)
            for job_kind in registry.job_kinds()
        }
        self._pods = PodIndex(self._api, f"/namespaces/{namespace}" if namespace else "")
        self._threads: tuple[threading.Thread, ...] = ()
        self._namespace_objects: dict[str, tuple[float, NamespaceObjects]] = {}

    def follow(self, stop: threading.Event) -> None:
        """Begin to mirror, pods first, in threads that end with the process or after stop."""
        following: dict[str, Callable[[threading.Event], None]] = {"pods": self._pods.follow}
        for kind, jobs in self._jobs.items():
            following[registry.kind_named(kind).plural] = functools.partial(self._follow_jobs, jobs)
        self._threads = tuple(
            threading.Thread(target=follow, args=(stop,), name=name, daemon=True)
            for name, follow in following.items()
        )
        for thread in self._threads:
            thread.start()

    def _follow_jobs(self, jobs: Informer[bytes], stop: threading.Event) -> None:
        # A job that is told of is looked at, and a look wants its pods.
        while not (stop.is_set() or self._pods.synced.wait(_POLL_SECONDS)):
            continue
        jobs.follow(stop)

    def is_following(self) -> bool:
        """Whether changes are still heard."""
        return all(thread.is_alive() for thread in self._threads)

    def job_keys(self) -> tuple[JobKey, ...]:
        """Of labelled jobs, as far as they were heard of."""
        return tuple(
            JobKey(*place, kind)
            for kind, mirror in self._jobs.items()
            for place in mirror.keys()  # noqa: SIM118 - an informer is no mapping
        )

    def job_count(self) -> int:
        """How many labelled jobs there are."""
        return sum(map(len, self._jobs.values()))

    # -- reads -------------------------------------------------------------------------------------

    def get_job(self, key: JobKey) -> ObservedJob:
        """Read one job."""
        packed = self._jobs[key.kind].get((key.namespace, key.name))
        if packed is None:
            return super().get_job(key)
        return objects.parse_job(json.loads(zlib.decompress(packed)))

    def list_pods(self, key: JobKey) -> tuple[Pod, ...]:
        """The job's pods in replica order."""
        if not self._pods.synced.is_set():
            return super().list_pods(key)
        return self._pods.pods_of(key)

    def namespace_objects(self, namespace: str) -> NamespaceObjects:
        """Nodes with the pods on them, and the namespace's quotas and autoscalers."""
        known = self._namespace_objects.get(namespace)
        if known is not None and self._clock() - known[0] < SURROUNDINGS_SECONDS:
            return known[1]
        found = super().namespace_objects(namespace)
        self._namespace_objects[namespace] = self._clock(), found
        return found

    # -- writes ------------------------------------------------------------------------------------

    def patch_job(
        self, key: JobKey, patch: Mapping[str, Any], *, resource_version: str | None = None
    ) -> ObservedJob:
        """JSON merge patch of the job."""
        if "spec" in patch:
            self._namespace_objects.clear()
        try:
            job = super().patch_job(key, patch, resource_version=resource_version)
        except errors.Conflict:
            # Who tries again shall see what there is now, though the watch be late.
            self._jobs[key.kind].record_write(super().get_job(key).manifest)
            raise
        self._jobs[key.kind].record_write(job.manifest)
        return job

    def delete_pod(self, key: JobKey, pod: str) -> None:
        """Delete this very pod with its grace period; one that is gone is no error."""
        known = next((one for one in self.list_pods(key) if one.name == pod), None)
        self._delete_pod(key, pod, known and {"preconditions": {"uid": known.uid}})


def _informer(
    api: KubernetesApi, job_kind: JobKind, namespace: str, on_change: Callable[[JobKey], None]
) -> Informer[bytes]:
    return Informer(
        api,
        job_kind.path(namespace),
        what=job_kind.plural,
        query=LABELLED,
        transform=lambda item: _compress(item, job_kind),
        on_change=lambda object_key: on_change(JobKey(*object_key, job_kind.kind)),
    )


def _compress(item: Mapping[str, Any], job_kind: JobKind) -> bytes:
    """A job's text, compressed; who manages its fields is never asked."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    whole = {**job_kind.identify(item), "metadata": metadata}
    return zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), _LEVEL)


class PodIndex:
    """A mirror of the pods that the Training Operator made of jobs."""

    def __init__(self, api: KubernetesApi, namespace_path: str = "") -> None:
        operators = ",".join(job_kind.operator for job_kind in registry.job_kinds())
        self._informer = Informer(
            api,
            f"/api/v1{namespace_path}/pods",
            what="pods",
            query={"labelSelector": f"{names.OPERATOR_NAME_LABEL} in ({operators})"},
            transform=_parse_member,
            on_change=self._index_pod,
        )
        self._lock = threading.Lock()
        self._by_job: dict[JobKey, dict[ObjectKey, Pod]] = {}
        """By the job, then by the pod's place."""
        self._job_by_pod: dict[ObjectKey, JobKey] = {}
        """By the pod's place: under which job it is filed."""
        self.follow = self._informer.follow
        """List and watch until an event is set."""
        self.synced = self._informer.synced
        """Set once all pods were read: what is not here is not there."""

    def pods_of(self, key: JobKey) -> tuple[Pod, ...]:
        """A job's pods in replica order."""
        with self._lock:
            found = tuple(self._by_job.get(key, {}).values())
        return objects.sort_pods(found)

    def _index_pod(self, pod_key: ObjectKey) -> None:
        member = self._informer.get(pod_key)
        with self._lock:
            filed = self._job_by_pod.pop(pod_key, None)
            if filed is not None:
                self._by_job[filed].pop(pod_key, None)
                if not self._by_job[filed]:
                    del self._by_job[filed]
            if member is not None:
                job, pod = member
                self._job_by_pod[pod_key] = job
                self._by_job.setdefault(job, {})[pod_key] = pod


def _parse_member(item: Mapping[str, Any]) -> tuple[JobKey, Pod] | None:
    """A pod with its job; None if it lacks the Training Operator's labels."""
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    job_kind = registry.kind_operated_by(labels.get(names.OPERATOR_NAME_LABEL, ""))
    job = JobKey(metadata["namespace"], str(labels.get(names.JOB_NAME_LABEL, "")), job_kind.kind)
    found = objects.parse_pods([item])
    return (job, found[0]) if found else None
