# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many workers a job may have and how large its arena is; read by injection and reconcilers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import MAX_REPLICAS
from rover_kf.injection import quantities
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.job_kinds.job_spec import JobSpec

MIB = 1 << 20
DEFAULT_ARENA = 1 << 30
"""Bytes for a trainer that states no memory at all."""
SIDECAR_MEMORY = 192 * MIB
"""What the sidecar's own process needs besides the arena."""
VOLUME_MARGIN = 64 * MIB
"""Room in the shared volume for the runtime's files, the socket and the control records."""


def worker_bounds(job: JobSpec, policy: RoverPolicy) -> tuple[int, int]:
    """Fewest and most Worker replicas: annotation, else elasticPolicy, else what stands there.

    Of a TFJob whose workers come and go one may stay alone.

    Raises:
        ManifestError: they are above MAX_REPLICAS. A job that no webhook has seen may state that.
    """
    elastic = job.kind.elastic_policy(job.manifest)
    workers = job.workers
    fewest = 1 if job.is_dynamic else workers
    low = policy.scaling.min or elastic.get("minReplicas") or fewest
    high = policy.scaling.max or elastic.get("maxReplicas") or max(workers, low)
    if high > MAX_REPLICAS or low > MAX_REPLICAS:
        allowed = f"{MAX_REPLICAS} at most, as for Worker.replicas"
        raise errors.ManifestError("spec.elasticPolicy", dict(elastic), allowed=allowed)
    return min(low, high) if policy.scaling.min is None else low, high


def trainer_memory(trainer: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Bytes that the trainer may use, and whether that is a limit (else only a request).

    Raises:
        ValueError: the manifest's value is no quantity.
    """
    resources = trainer.get("resources") or {}
    for key in ("limits", "requests"):
        stated = (resources.get(key) or {}).get("memory")
        if stated is not None:
            return quantities.parse_bytes(stated), key == "limits"
    return None, False


def arena_bytes(
    trainer: Mapping[str, Any], policy: RoverPolicy, *, stated: int | None = None
) -> int:
    """Bytes of all slots of one pod: the annotation, else half of the trainer's memory.

    Args:
        trainer: the container.
        policy: of the job.
        stated: its memory before rover-kf raised it, in bytes: the arena does not grow by that.
    """
    if policy.checkpoint.arena is not None:
        return policy.checkpoint.arena
    memory = stated or trainer_memory(trainer)[0]
    if memory is None:
        return DEFAULT_ARENA
    return max(MIB, memory // 2 // MIB * MIB)
