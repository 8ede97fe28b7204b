# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a manifest says of a job, injected or not: signature, sizes, bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.api.records import JobSignature, ServerSetup
from rover_kf.injection import command, quantities, sizing, storage_mount
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.job_spec import JobSpec

ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "google.com/tpu")


@dataclasses.dataclass(frozen=True, slots=True)
class JobFacts:
    """A manifest, read."""

    signature: JobSignature
    requested: Mapping[str, float]
    """``replicas`` (workers), and where stated ``cpu`` (cores) and ``memory`` (bytes)."""
    masters: int
    min_replicas: int
    max_replicas: int
    checkpoint_every: int
    """Steps between two saves: the annotation or the default."""
    states_every: bool
    """Whether the annotation is there."""
    arena_bytes: int | None = None
    """The annotation; None if it is not there."""
    persist_seconds: float = 60.0
    """Least time between two persists; at least 1."""
    storage: str = ""
    """Which storage checkpoints go to; empty: none."""
    setup: ServerSetup | None = None
    """Workers and parameter servers; None where it has none."""
    trained: float | None = None
    """Parameters that are trained, where that is known and is not all of them."""


def from_manifest(manifest: Manifest, *, source: str = "manifest") -> JobFacts:
    """Read a PyTorchJob or a TFJob.

    Raises:
        InputError: it is neither, a policy annotation is wrong, or it has no trainer container.
    """
    job = JobSpec.parse(manifest, source=source)
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    policy = RoverPolicy.from_annotations(annotations, source=source)
    leader = next((item for item in job.replicas if item.kind == "worker"), job.replicas[0])
    trainer = job.kind.trainer(leader)
    low, high = sizing.worker_bounds(job, policy)
    resources = _resources(trainer, source)
    signature = JobSignature(
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or metadata.get("generateName") or "",
        kind=job.kind.kind,
        image=str(trainer.get("image") or ""),
        command=" ".join(command.original(manifest, leader.key, trainer)),
        processes_per_node=command.processes_of(job.kind.processes(manifest)),
        accelerators=int(sum(resources.get(name, 0.0) for name in ACCELERATORS)),
    )
    requested = {key: value for key, value in resources.items() if key in ("cpu", "memory")}
    return JobFacts(
        signature=signature,
        requested={"replicas": float(job.workers), **requested},
        masters=job.masters,
        min_replicas=low,
        max_replicas=high,
        checkpoint_every=policy.checkpoint.every,
        states_every=f"{names.PREFIX}checkpoint.every" in annotations,
        arena_bytes=policy.checkpoint.arena,
        persist_seconds=max(1.0, policy.checkpoint.persist_seconds),
        storage=storage_mount.identity(
            policy.checkpoint.path, trainer, leader.spec["template"]["spec"], signature.namespace
        ),
        setup=server_setup(manifest),
    )


def server_setup(manifest: Manifest) -> ServerSetup | None:
    """Workers and parameter servers of a TFJob that has both; None of another job.

    Raises:
        InputError: an amount of cores is no quantity.
    """
    job_kind = registry.kind_of(manifest)
    found = {item.kind: item for item in job_kind.replicas(manifest)}
    worker, server = found.get("worker"), found.get("ps")
    if worker is None or server is None:
        return None
    cores = [_parse_cores(job_kind.trainer(item), item.path) for item in (worker, server)]
    return ServerSetup(0.0, worker.replicas, server.replicas, *cores)


def _parse_cores(trainer: Mapping[str, Any], path: str) -> float:
    resources = trainer.get("resources") or {}
    stated = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return _parse_amount("cpu", stated["cpu"], path) or 1.0 if "cpu" in stated else 1.0


def _resources(trainer: Mapping[str, Any], source: str) -> dict[str, float]:
    """Requests, with limits where no request is stated, as the scheduler reads them."""
    resources = trainer.get("resources") or {}
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(key): _parse_amount(str(key), value, source) for key, value in stated.items()}


def _parse_amount(key: str, value: object, source: str) -> float:
    try:
        return float(quantities.parse(value))
    except ValueError as cause:
        allowed = "a quantity such as 500m or 4Gi"
        raise errors.ManifestError(
            f"resources.{key}", value, allowed=allowed, source=source
        ) from cause
