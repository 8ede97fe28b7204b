# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that the Training Operator made of PyTorchJobs and TFJobs, followed, found by their job."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster.kubernetes import conversion as objects
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.informer import Informer, ObjectKey

_KINDS = {f"{kind.lower()}-controller": kind for kind in (names.PYTORCHJOB, names.TFJOB)}
"""Of jobs, by what the operator calls itself on their pods."""
_MADE = f"{names.OPERATOR_NAME_LABEL} in ({','.join(_KINDS)})"


@dataclasses.dataclass(frozen=True, slots=True)
class IndexedPod:
    """A pod and its job."""

    job: JobKey
    pod: Pod | None
    """None: it lacks the Training Operator's labels."""


class PodIndex:
    """A mirror of those pods.

    Args:
        api: of the cluster.
        namespace_path: the part of the path that names a namespace; empty: all.
    """

    def __init__(self, api: KubernetesApi, namespace_path: str = "") -> None:
        self._informer = Informer(
            api,
            f"/api/v1{namespace_path}/pods",
            what="pods",
            query={"labelSelector": _MADE},
            transform=_member,
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
            if member is not None and member.pod is not None:
                self._job_by_pod[pod_key] = member.job
                self._by_job.setdefault(member.job, {})[pod_key] = member.pod


def _member(item: Mapping[str, Any]) -> IndexedPod:
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    name, maker = (labels.get(key, "") for key in (names.JOB_NAME_LABEL, names.OPERATOR_NAME_LABEL))
    job = JobKey(metadata["namespace"], name, _KINDS.get(maker, names.PYTORCHJOB))
    found = objects.parse_pods([item])
    return IndexedPod(job, found[0] if found else None)
