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
from rover_kf.cluster.kubernetes.api import Api
from rover_kf.cluster.kubernetes.informer import Mirror, Place

_KINDS = {f"{kind.lower()}-controller": kind for kind in (names.PYTORCHJOB, names.TFJOB)}
"""Of jobs, by what the operator calls itself on their pods."""
_MADE = f"{names.OPERATOR_NAME_LABEL} in ({','.join(_KINDS)})"


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A pod and its job."""

    job: JobKey
    pod: Pod | None
    """None: it lacks the Training Operator's labels."""


class PodsOfJobs:
    """A mirror of those pods.

    Args:
        api: of the cluster.
        place: the part of the path that names a namespace; empty: all.
    """

    def __init__(self, api: Api, place: str = "") -> None:
        self._mirror = Mirror(
            api,
            f"/api/v1{place}/pods",
            what="pods",
            query={"labelSelector": _MADE},
            keep=_member,
            changed=self._file,
        )
        self._lock = threading.Lock()
        self._filed: dict[JobKey, dict[Place, Pod]] = {}
        """By the job, then by the pod's place."""
        self._jobs: dict[Place, JobKey] = {}
        """By the pod's place: under which job it is filed."""
        self.follow = self._mirror.follow
        """List and watch until an event is set."""
        self.synced = self._mirror.synced
        """Set once all pods were read: what is not here is not there."""

    def of(self, key: JobKey) -> tuple[Pod, ...]:
        """A job's pods in replica order."""
        with self._lock:
            found = tuple(self._filed.get(key, {}).values())
        return objects.in_order(found)

    def _file(self, place: Place) -> None:
        member = self._mirror.get(place)
        with self._lock:
            filed = self._jobs.pop(place, None)
            if filed is not None:
                self._filed[filed].pop(place, None)
                if not self._filed[filed]:
                    del self._filed[filed]
            if member is not None and member.pod is not None:
                self._jobs[place] = member.job
                self._filed.setdefault(member.job, {})[place] = member.pod


def _member(item: Mapping[str, Any]) -> Member:
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    name, maker = (labels.get(key, "") for key in (names.JOB_NAME_LABEL, names.OPERATOR_NAME_LABEL))
    job = JobKey(metadata["namespace"], name, _KINDS.get(maker, names.PYTORCHJOB))
    found = objects.pods_of([item])
    return Member(job, found[0] if found else None)
