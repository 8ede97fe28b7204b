# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a job and its pods, wherever they run: frozen views, never written back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.system.html_tables import NotebookTable

Manifest = Mapping[str, Any]
"""A Kubernetes object as plain data; nobody changes one in place."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """Where a job is found."""

    namespace: str
    name: str
    kind: str = names.PYTORCHJOB

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def controller_audience(self) -> str:
        """Audience of the tokens that the controller sends to this job's sidecars."""
        return f"{names.AUDIENCE}:{self.namespace}/{self.name}"


MAX_REPLICAS = 10_000
"""Pods of one replica type at most: each costs the controller memory and time."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerStatus:
    """State of one container of a pod, as the kubelet reports it."""

    name: str
    running: bool
    restarts: int = 0
    exit_code: int | None = None
    """Of the last termination, if there was one."""
    reason: str = ""
    """Of the last termination or of waiting: OOMKilled, Error, CrashLoopBackOff, …"""
    message: str = ""
    """What the kubelet says of why it waits."""
    ended_at: float = 0.0
    """When it was last terminated; Unix seconds of its node, 0 if it never was."""
    termination_reason: str = ""
    """Why, whatever it waits for since."""
    memory_limit: str = ""
    """What it shall have at most, as the pod states it; empty: no limit, or not known."""
    cpu_limit: str = ""
    termination_message: str = ""
    """What it left in its termination log when it was last terminated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """One replica's pod."""

    name: str
    uid: str
    replica_type: str
    """``master``, ``worker``, ``chief``, ``ps``, … (lower case, as in the pod's label)."""
    replica_index: int
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    address: str = ""
    """IP address; empty until it has one."""
    node: str = ""
    deleting: bool = False
    ready: bool = True
    """Its Ready condition; Kubernetes takes it from the pods of a node that fell silent."""
    containers: tuple[ContainerStatus, ...] = ()
    reasons: tuple[str, ...] = ()
    """Reasons of its status (Evicted, …) and its DisruptionTarget (PreemptionByScheduler, …)."""
    message: str = ""
    """What Kubernetes says beside them."""
    resize: str = ""
    """Why it has not got yet what it shall have: Deferred, Infeasible; empty if it has."""
    resize_since: float = 0.0
    """Unix seconds."""
    scheduled_at: float = 0.0
    """When the scheduler chose its node; Unix seconds, 0 if it has none."""
    unschedulable: str = ""
    """Why the scheduler finds no node for it; empty if it has one, or will have one soon."""
    unschedulable_since: float = 0.0
    """Unix seconds."""
    uses_tls: bool = False
    """Its sidecar speaks TLS."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's story, as ``kubectl describe`` shows it."""

    reason: str
    """CamelCase; one of ``names.EVENT_*`` for ours."""
    message: str
    warning: bool = False
    at: float = 0.0
    """Unix seconds."""
    sequence: int = 0
    """Position in the writer's own story, from 1; lets a reader ask for what is new."""
    source: str = ""
    """Pod or component that saw it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedJob(NotebookTable):
    """A job as it stands in the cluster, with defaults of the Training Operator applied."""

    key: JobKey
    uid: str
    resource_version: str
    manifest: Manifest
    replicas: Mapping[str, int]
    """By replica type in lower case: ``{"master": 1, "worker": 3}``."""
    phase: str
    """Last true condition: Created, Running, Restarting, Suspended, Succeeded, Failed; or ""."""
    suspended: bool = False
    deleting: bool = False
    created_at: float = 0.0
    finished_at: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the Training Operator has given its final verdict."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def inactive(self) -> bool:
        """Whether nothing of it is to train: it has ended, is suspended or is being deleted."""
        return self.finished or self.suspended or self.deleting

    @property
    def labels(self) -> Mapping[str, str]:
        """The job's labels."""
        return self.manifest["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """The job's annotations."""
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def nodes(self) -> int:
        """Pods that train together: Master and Worker replicas; beside PS the Chief alone."""
        kinds = ("master", "chief") if "ps" in self.replicas else ("master", "chief", "worker")
        return sum(self.replicas.get(kind, 0) for kind in kinds)

    def _html_title(self) -> str:
        return str(self.key)

    def _html_rows(self) -> Iterable[Sequence[object]]:
        yield "phase", self.phase or "New"
        yield "replicas", ", ".join(f"{count} {kind}" for kind, count in self.replicas.items())
        if self.suspended:
            yield "suspended", "yes"
        for key in sorted(self.annotations):
            if key.startswith(names.PREFIX) and key.count(".") > 1:  # policy, not what we wrote
                yield key.removeprefix(names.PREFIX), self.annotations[key]
