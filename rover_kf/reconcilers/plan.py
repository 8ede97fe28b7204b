# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a tick sees, and what it wants done: values between observing and applying.

Effects are applied in order and each may be the last one before a crash. A change of replicas is
therefore written down first (Remember), then announced to the coordinator (Announce), then made
together with its trace in one patch (Resize): a controller that comes back finds the intention
and completes it, or finds it completed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.jobs import Event, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.elastic.node_check.fleet import FleetBaselines
from rover_kf.injection.adapters import PYTORCH, TENSORFLOW
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.decision_input import ScalingProposal
from rover_kf.scaling.fair_sharing import FairShareView
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decision_input import PsProposal
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
        if self.job.key.kind != names.TFJOB:
            return frozenset()
        return TENSORFLOW.standalone_types(self.job.manifest)

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
        return self.job.key.kind == names.PYTORCHJOB


@dataclasses.dataclass(frozen=True, slots=True)
class EmitJobEvent:
    """Put an Event on the job."""

    event: Event


@dataclasses.dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the annotation."""

    status: JobStatus


@dataclasses.dataclass(frozen=True, slots=True)
class AnnounceResize:
    """Tell the coordinator how many pods the job will have."""

    nodes: int
    reason: str
    required: bool = True
    """Whether what follows depends on it; a coordinator may refuse a size out of its bounds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resize:
    """Set Worker replicas and write the annotation in one patch."""

    replicas: int
    status: JobStatus
    specs: str = PYTORCH.specs

    @property
    def spec(self) -> dict[str, object]:
        """Merge patch of the job's spec."""
        return {self.specs: {"Worker": {"replicas": self.replicas}}}


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteLostPod:
    """Remove a pod whose node is silent: the operator makes another one elsewhere."""

    pod: Pod
    event: Event
    """That is told once it is removed."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestartRound:
    """Tell a coordinator that a server of its world's is gone with its node."""

    lost: Pod
    reason: str
    pod: Pod | None = None
    """Whose coordinator; None: the job's."""


@dataclasses.dataclass(frozen=True, slots=True)
class MarkUnavailable:
    """Tell the coordinator whose pods cannot come now."""

    ranks: tuple[int, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class SendAddresses:
    """Tell the coordinator where pods are that it waits for."""

    addresses: Mapping[str, str]
    """By the pod's name."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod with its grace, in which the world drains: the operator makes another one."""

    pod: Pod


@dataclasses.dataclass(frozen=True, slots=True)
class RaiseLimit:
    """Raise a limit in the job's template and write the annotations in one patch."""

    spec: Mapping[str, Any]
    """Merge patch of the job's spec."""
    annotation_value: str
    """What the annotation says then."""
    status: JobStatus
    annotation_key: str = names.MEMORY_RAISED_ANNOTATION


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeContainer:
    """Give a running pod's container what its template states by now."""

    pod: Pod
    container: str
    resources: Mapping[str, Mapping[str, Any]]
    resource: str = "memory"
    """What of it, for a person."""
    failure_reason: str = names.EVENT_MEMORY_NOT_RAISED


@dataclasses.dataclass(frozen=True, slots=True)
class ExcludeNodes:
    """Change which nodes the pod templates leave out, and write the annotation in one patch."""

    specs: Mapping[str, object]
    """Merge patches of replica specs, by replica type."""
    status: JobStatus

    @property
    def spec(self) -> dict[str, object]:
        """Merge patch of the job's spec."""
        return {"pytorchReplicaSpecs": dict(self.specs)}


@dataclasses.dataclass(frozen=True, slots=True)
class Cordon:
    """Keep all new pods, of other jobs too, from a node; where that is refused it is told."""

    node: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class FailJob:
    """Let the Training Operator end a job that cannot go on, and write the annotation."""

    status: JobStatus

    @property
    def spec(self) -> dict[str, object]:
        """Merge patch of the job's spec."""
        return {"runPolicy": {"backoffLimit": 0}}


@dataclasses.dataclass(frozen=True, slots=True)
class Suspend:
    """Set runPolicy.suspend and write the annotation, which says why, in one patch."""

    status: JobStatus

    @property
    def spec(self) -> dict[str, object]:
        """Merge patch of the job's spec."""
        return {"runPolicy": {"suspend": True}}


@dataclasses.dataclass(frozen=True, slots=True)
class Resume:
    """Let a job go on that was suspended for a moment, and write the annotation in one patch."""

    status: JobStatus
    replicas: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """That a TFJob goes on with, by replica type as in its spec; others stay as they are."""

    @property
    def spec(self) -> dict[str, object]:
        """Merge patch of the job's spec."""
        goes_on: dict[str, object] = {"runPolicy": {"suspend": False}}
        if self.replicas:
            counts = {kind: {"replicas": count} for kind, count in self.replicas.items()}
            goes_on[TENSORFLOW.specs] = counts
        return goes_on


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job that nobody waits for; where that is refused it is told."""


Patch = WriteStatus | Resize | RaiseLimit | ExcludeNodes | FailJob | Suspend | Resume
"""Changes of the job itself."""
CoordinatorCall = AnnounceResize | MarkUnavailable | RestartRound | SendAddresses
"""What a coordinator is told."""
Action = (
    EmitJobEvent
    | CoordinatorCall
    | DeletePod
    | DeleteLostPod
    | ResizeContainer
    | Cordon
    | DeleteJob
)
"""All else."""
Effect = Patch | Action


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

    def with_effects(self, *effects: Effect, status: JobStatus) -> ReconcilePlan:
        """The plan with more to do."""
        return dataclasses.replace(self, effects=(*self.effects, *effects), status=status)

    def collect_events(self) -> tuple[Event, ...]:
        """The Events that it puts on the job."""
        return tuple(
            effect.event
            for effect in self.effects
            if isinstance(effect, EmitJobEvent | DeleteLostPod)
        )
