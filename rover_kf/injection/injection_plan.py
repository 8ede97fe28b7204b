# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything the injectors need to know of one replica type, computed once.

A frozen value: no injector looks at another's work or at the rest of the job.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.injection import command, sizing, storage_mount
from rover_kf.injection.limits import manifest_memory
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds.job_kind import JobKind, Replica
from rover_kf.job_kinds.job_spec import JobSpec

SIDECAR_USER = 65532
"""User and group of the sidecar where the pod does not say which."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorldSpec:
    """The pods that train together, or one that is a world of its own (standalone_types)."""

    coordinator_type: str
    """Replica type of the pod that coordinates it."""
    masters: int = 1
    workers: int = 0
    min_workers: int = 0
    max_workers: int = 0
    standalone: bool = False

    def checkpoint_path(self, policy: RoverPolicy) -> str | None:
        """Where its checkpoints go; one that is alone has none."""
        return None if self.standalone else policy.checkpoint.path


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """What is to be added to one replica type's pod template."""

    settings: InjectionSettings
    policy: RoverPolicy
    replica: Replica
    job_kind: JobKind
    job: str
    """Empty if the API server makes the name up (generateName)."""
    world: WorldSpec
    arena_bytes: int
    scratch_bytes: int
    """Of files that a framework writes into the shared volume before they are saved."""
    storage_mount: Mapping[str, Any] | None
    """The trainer's mount that covers the checkpoint path."""
    user: int
    group: int | None
    guaranteed: bool
    """Every container of the pod has limits equal to its requests."""
    rewritten: command.ParsedCommand | None
    """None leaves the trainer's command as it is."""
    not_rewritten: str
    """Why, if it does."""
    cluster: str = ""
    """Of a TFJob whose workers come and go: all addresses that it may ever have (tfjob.py)."""
    ledger: str = ""
    """Replica type of the pod that lends it records, where that is of another world."""
    replica_holder: str = ""
    """Replica type of the pod of another world that keeps a copy of its newest save."""
    holds_replica_of: str = ""
    """Replica type of the pod of another world whose newest save it keeps."""

    @property
    def container(self) -> str:
        """Name of the container that trains."""
        return self.job_kind.container

    @property
    def is_server(self) -> bool:
        """Whether its pods are servers that others drive.

        Evaluators are not, nor are workers that come and go: each is a client of its own.
        """
        kinds = ("ps",) if self.cluster else ("worker", "ps")
        return self.world.standalone and self.replica.kind in kinds

    @property
    def key_secret(self) -> str | None:
        """The Secret with the keys of the bucket that checkpoints go to; None: there is none."""
        stated = self.policy.checkpoint.secret
        return stated if storage_mount.is_url(self.world.checkpoint_path(self.policy)) else None


def plan_replicas(
    job: JobSpec, policy: RoverPolicy, settings: InjectionSettings
) -> tuple[ReplicaPlan, ...]:
    """Plan every replica type of a validated job without our own parts."""
    together, alone = _world(job, policy), job.standalone_types
    metadata, job_kind, dynamic = job.manifest["metadata"], job.kind, job.is_dynamic
    processes = command.processes_of(job_kind.processes(job.manifest))
    cluster = job_kind.dynamic_cluster_spec(job.manifest, policy.scaling.max or 0)
    copies = policy.checkpoint.peer_copy == "on"
    plans = []
    for replica in job.replicas:
        world = WorldSpec(replica.kind, standalone=True) if replica.kind in alone else together
        trainer = job_kind.trainer(replica)
        pod = replica.spec["template"]["spec"]
        user, group = _identity(trainer, pod)
        rewritten = command.rewrite(command.read(trainer), processes)
        plans.append(
            ReplicaPlan(
                settings=settings,
                policy=policy,
                replica=replica,
                job_kind=job_kind,
                job="" if metadata.get("generateName") else metadata["name"],
                world=world,
                **_memory(job, replica, policy, world),
                storage_mount=storage_mount.covering_mount(trainer, world.checkpoint_path(policy)),
                user=user,
                group=group,
                guaranteed=all(_is_guaranteed(item) for item in pod["containers"]),
                rewritten=None if isinstance(rewritten, str) else rewritten,
                not_rewritten=rewritten if isinstance(rewritten, str) else "",
                cluster=cluster,
                ledger=together.coordinator_type if dynamic and replica.kind == "worker" else "",
                replica_holder="ps" if copies and replica.kind == together.coordinator_type else "",
                holds_replica_of=together.coordinator_type
                if copies and replica.kind == "ps"
                else "",
            )
        )
    return tuple(plans)


def _world(job: JobSpec, policy: RoverPolicy) -> WorldSpec:
    """Of the pods that are not alone."""
    alone = job.standalone_types
    kinds = [item.kind for item in job.replicas if item.kind not in alone]
    if "worker" not in kinds:
        return WorldSpec(kinds[0], job.masters)
    low, high = sizing.worker_bounds(job, policy)
    return WorldSpec(kinds[0], job.masters, job.workers, low, high)


def _memory(
    job: JobSpec, replica: Replica, policy: RoverPolicy, world: WorldSpec
) -> dict[str, int]:
    """Bytes of slots and of a framework's own files beside them."""
    if world.standalone:
        kept = 0
        if replica.kind == "ps" and policy.checkpoint.peer_copy == "on":
            kept = _first_pod_slot_bytes(job, policy)
        return {"arena_bytes": sizing.MIB + kept, "scratch_bytes": 0}
    trainer = job.kind.trainer(replica)
    stated = manifest_memory.stated(job.manifest, replica.key, trainer)
    arena = sizing.arena_bytes(trainer, policy, stated=stated)
    return {"arena_bytes": arena, "scratch_bytes": arena // 2 if job.kind.writes_files else 0}


def _first_pod_slot_bytes(job: JobSpec, policy: RoverPolicy) -> int:
    """Bytes of one of the two slots of the job's first pod."""
    world = _world(job, policy)
    first = next(item for item in job.replicas if item.kind == world.coordinator_type)
    return _memory(job, first, policy, world)["arena_bytes"] // 2


def _identity(trainer: Mapping[str, Any], pod: Mapping[str, Any]) -> tuple[int, int | None]:
    """User and group whose files trainer and sidecar share: what the manifest says, else ours."""
    contexts = (trainer.get("securityContext") or {}, pod.get("securityContext") or {})
    user = next((item["runAsUser"] for item in contexts if "runAsUser" in item), None)
    group = next((item["runAsGroup"] for item in contexts if "runAsGroup" in item), None)
    if user is None:
        return SIDECAR_USER, SIDECAR_USER if group is None else group
    return int(user), group


def _is_guaranteed(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = {**limits, **(resources.get("requests") or {})}
    return all(key in limits and limits[key] == requests[key] for key in ("cpu", "memory"))


def min_pods(plans: Sequence[ReplicaPlan]) -> int:
    """How many pods of a job a gang scheduler has to start together."""
    alone = sum(item.replica.replicas for item in plans if item.world.standalone)
    together = next(item.world for item in plans if not item.world.standalone)
    return together.masters + together.min_workers + alone


def coordinator_of(plan: ReplicaPlan) -> str:
    """Host name of the coordinator; refers to the sidecar's own variable if the name is not known.

    The kubelet replaces ``$(NAME)`` in a variable's value by a variable that stands before it.
    """
    job = plan.job or f"$({names.ENV_JOB})"
    index = f"$({names.ENV_REPLICA_INDEX})" if plan.world.standalone else "0"
    return f"{job}-{plan.world.coordinator_type}-{index}"


def first_pod_of(plan: ReplicaPlan, kind: str) -> str:
    """Host name of the first pod of another replica type.

    Args:
        plan: of the pod that is told.
        kind: the type; empty: none.
    """
    job = plan.job or f"$({names.ENV_JOB})"
    return f"{job}-{kind}-0" if kind else ""


def canonical(value: object) -> str:
    """JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
