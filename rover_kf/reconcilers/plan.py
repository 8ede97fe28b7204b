# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a tick sees, and what it wants done: values between observing and applying.

Effects are applied in order and each may be the last one before a crash. A change of replicas is
therefore written down first, then announced to the coordinator (AnnounceResize), then made together
with its trace in one patch (PatchJob): a controller that comes back finds the intention and
completes it, or finds it completed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.elastic.node_check.verdict import FleetBaselines
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.decision_input import ScalingProposal
from rover_kf.scaling.fair_sharing import FairShareView
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decide import PsProposal
from rover_kf.scaling.ps_model import PsModel


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """A job in one moment."""

    job: ObservedJob
    pods: tuple[Pod, ...]
    status: CoordinatorStatus | None
    """None while the coordinator cannot be reached."""
    policy: AutoscalingPolicy
    silent_nodes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Nodes of its pods that are not heard any more, and since when (Unix seconds)."""
    node_memory: tuple[str, ...] = ()
    """What nodes have for pods, as quantities; empty: not asked for, or no bound."""
    node_cpu: tuple[str, ...] = ()
    """The same of cores."""
    resizes: bool = True
    """Whether pods can be resized while they run, as far as it was asked."""
    fleet: FleetBaselines = dataclasses.field(default_factory=FleetBaselines)
    """What checks of nodes showed in other jobs; filled in where this one was checked."""
    policy_error: str = ""
    """Why the job's annotations could not be read as a policy; the policy is then ``off``."""
    status_error: str = ""
    """Why the coordinator's answer could not be used; the status is then None."""
    ps_model: PsModel | None = None
    """Of parameter servers, by what this run and its like have shown; None: that tells nothing."""
    capacity: FairShareView | None = None
    """What is around the job; read where a change is wanted or others lack room."""
    rejection: str = ""
    """Why the API server would not take the change that is wanted, by a dry run."""
    standalone_statuses: Mapping[str, CoordinatorStatus] = dataclasses.field(default_factory=dict)
    """By pod, of pods that are worlds of their own and that answered."""

    @property
    def standalone_types(self) -> frozenset[str]:
        """Replica types of which each pod is a world of its own."""
        return kind_of_job(self.job).standalone_types(self.job.manifest)

    @property
    def world_pods(self) -> tuple[Pod, ...]:
        """The pods that train together."""
        return tuple(pod for pod in self.pods if pod.replica_type not in self.standalone_types)

    @property
    def replaceable(self) -> bool:
        """Whether a pod may be deleted for another one to take its place.

        The Training Operator fails a TFJob of which a pod ended, unless its exit code was from 128
        on; of one that is deleted that is not ours to promise.
        """
        return kind_of_job(self.job).elastic


@dataclasses.dataclass(frozen=True, slots=True)
class EmitJobEvent:
    """Put an Event on the job."""

    event: Event


@dataclasses.dataclass(frozen=True, slots=True)
class PatchJob:
    """Change the job and write its annotation in one patch."""

    status: JobStatus
    spec: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Merge patch of the job's spec; empty: the annotation alone is written."""
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Others that are written with it."""


def suspend_spec(job: ObservedJob) -> dict[str, object]:
    """Merge patch of the spec that suspends a job."""
    return kind_of_job(job).suspend_patch(suspended=True)


def worker_spec(job: ObservedJob, replicas: int) -> dict[str, object]:
    """Merge patch of the spec with a number of Worker replicas."""
    return kind_of_job(job).replicas_patch({"Worker": replicas})


def resume_spec(job: ObservedJob, replicas: Mapping[str, int]) -> dict[str, object]:
    """Merge patch of the spec of a job that was suspended for a moment.

    Args:
        job: that resumes.
        replicas: that it resumes with, by replica type as in its spec; others stay as they are.
    """
    job_kind = kind_of_job(job)
    return {**job_kind.suspend_patch(suspended=False), **job_kind.replicas_patch(replicas)}


@dataclasses.dataclass(frozen=True, slots=True)
class AnnounceResize:
    """Tell the coordinator how many pods the job will have."""

    nodes: int
    reason: str
    required: bool = True
    """Whether what follows depends on it; a coordinator may refuse a size out of its bounds."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallCoordinator:
    """Tell a coordinator what it cannot see itself."""

    path: str
    body: object
    failure: str
    """What follows where it is not told, for the log."""
    pod: Pod | None = None
    """Whose coordinator; None: the job's."""
    retried: bool = False
    """Whether one that does not answer is called again at the next look, before what follows."""
    level: int = logging.WARNING
    """Of the log line where it is not told."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod with its grace, in which the world drains: the operator makes another one."""

    pod: Pod


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteLostPod:
    """Remove a pod whose node is silent: the operator makes another one elsewhere."""

    pod: Pod
    event: Event
    """That is told once it is removed."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeContainer:
    """Give a running pod's container what its template states by now."""

    pod: Pod
    container: str
    resources: Mapping[str, Mapping[str, Any]]
    resource: str
    """What of it, for a person."""
    failure_reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Cordon:
    """Keep all new pods, of other jobs too, from a node; where that is refused it is told."""

    node: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job that nobody waits for; where that is refused it is told."""


Effect = (
    PatchJob
    | EmitJobEvent
    | AnnounceResize
    | CallCoordinator
    | DeletePod
    | DeleteLostPod
    | ResizeContainer
    | Cordon
    | DeleteJob
)


@dataclasses.dataclass(frozen=True, slots=True)
class CpuRaises:
    """What raised CPU limits mean to the policies after ``cpu_limits``."""

    settled_at: float = 0.0
    """Since when the present limits hold; 0: from the start of the job."""
    settling: float | None = None
    """Seconds since a raise whose effect is not measured yet; None: there is none."""
    behind: tuple[str, ...] = ()
    """Names of the pods that have less than their raised template states."""
    rate: float = 0.0
    """Steps a second before the newest raise; 0: there was none."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """What to do, in order, and what is remembered when all of it is done."""

    effects: tuple[Effect, ...]
    status: JobStatus
    decision: ScaleDecision | None = None
    """Of this tick; None where nothing was decided."""
    desired_replicas: int | None = None
    """Worker replicas that it would have, were there room; 0: what it asks for; None: as before."""
    limited_by: str = ""
    """What has no room for these, if it is something that other jobs might give."""
    proposal: ScalingProposal | None = None
    """What scaling makes of the job, whatever there is room for; None: nothing is to be scaled."""
    ps_proposal: PsProposal | None = None
    """The same of a job with parameter servers."""
    cpu: CpuRaises = dataclasses.field(default_factory=CpuRaises)
    """As ``cpu_limits`` left it; handed to the policies that wait for a raise."""

    def with_effects(self, *effects: Effect, status: JobStatus | None = None) -> ReconcilePlan:
        """The plan with more to do, and what is remembered then, where that changes."""
        return dataclasses.replace(
            self, effects=(*self.effects, *effects), status=status or self.status
        )

    def with_status(self, **changes: Any) -> ReconcilePlan:
        """The plan that remembers other values in fields of the status."""
        return dataclasses.replace(self, status=dataclasses.replace(self.status, **changes))

    def emit_once(self, key: str, event: Event) -> ReconcilePlan:
        """The plan with an Event that is told once under its key."""
        if self.status.has_emitted(key):
            return self
        return self.with_effects(EmitJobEvent(event), status=self.status.with_emitted(key))

    def patch(
        self, status: JobStatus, event: Event, spec: Mapping[str, object] | None = None
    ) -> ReconcilePlan:
        """The plan with a patch of the job, or of its annotation alone, and the Event of it."""
        return self.with_effects(PatchJob(status, spec or {}), EmitJobEvent(event), status=status)

    def collect_events(self) -> tuple[Event, ...]:
        """The Events that it puts on the job."""
        return tuple(
            effect.event
            for effect in self.effects
            if isinstance(effect, EmitJobEvent | DeleteLostPod)
        )
