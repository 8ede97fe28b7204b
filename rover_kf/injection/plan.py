# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything the injectors need to know of one replica type, computed once.

A frozen value: no injector looks at another's work or at the rest of the job.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection import command, memory_limit, sizing, storage
from rover_kf.injection.adapters import JobAdapter, Replica
from rover_kf.injection.policy import RoverPolicy
from rover_kf.injection.settings import InjectionSettings

SIDECAR_USER = 65532
"""User and group of the sidecar where the pod does not say which."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """What is to be added to one replica type's pod template."""

    settings: InjectionSettings
    policy: RoverPolicy
    replica: Replica
    container: str
    """Name of the container that trains."""
    job: str
    """Empty if the API server makes the name up (generateName)."""
    masters: int
    workers: int
    min_workers: int
    max_workers: int
    arena_bytes: int
    storage_mount: Mapping[str, Any] | None
    """The trainer's mount that covers the checkpoint path."""
    user: int
    group: int | None
    guaranteed: bool
    """Every container of the pod has limits equal to its requests."""
    rewritten: command.Exec | None
    """None leaves the trainer's command as it is."""
    not_rewritten: str
    """Why, if it does."""


def plan_replicas(
    manifest: Manifest, adapter: JobAdapter, policy: RoverPolicy, settings: InjectionSettings
) -> tuple[ReplicaPlan, ...]:
    """Plan every replica type of a validated job without our own parts."""
    low, high = sizing.worker_bounds(manifest, policy, adapter)
    metadata, spec = manifest["metadata"], manifest["spec"]
    processes = command.processes_of(spec.get("nprocPerNode"))
    plans = []
    for replica in adapter.replicas(manifest):
        trainer = adapter.trainer(replica)
        pod = replica.spec["template"]["spec"]
        user, group = _identity(trainer, pod)
        rewritten = command.rewrite(command.read(trainer), processes)
        plans.append(
            ReplicaPlan(
                settings=settings,
                policy=policy,
                replica=replica,
                container=adapter.container,
                job="" if metadata.get("generateName") else metadata["name"],
                masters=adapter.masters(manifest),
                workers=adapter.workers(manifest),
                min_workers=low,
                max_workers=high,
                arena_bytes=sizing.arena_bytes(
                    trainer,
                    policy,
                    stated=memory_limit.stated(manifest, replica.key, trainer),
                ),
                storage_mount=storage.covering_mount(trainer, policy.checkpoint.path),
                user=user,
                group=group,
                guaranteed=all(_is_guaranteed(item) for item in pod["containers"]),
                rewritten=None if isinstance(rewritten, str) else rewritten,
                not_rewritten=rewritten if isinstance(rewritten, str) else "",
            )
        )
    return tuple(plans)


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


def coordinator_of(plan: ReplicaPlan) -> str:
    """Host name of the coordinator; refers to the sidecar's own variable if the name is not known.

    The kubelet replaces ``$(NAME)`` in a variable's value by a variable that stands before it.
    """
    job = plan.job or f"$({names.ENV_JOB})"
    return f"{job}-{'master' if plan.masters else 'worker'}-0"


def canonical(value: object) -> str:
    """JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
