# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's memory limit in a manifest, in bytes, and what it was before; pure."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection import quantities
from rover_kf.injection.limits.raised_limit import LimitRaise, ResourceLimit
from rover_kf.job_kinds import registry

__all__ = [
    "MEMORY",
    "LimitRaise",
    "annotation",
    "limit_of",
    "max_limit",
    "other_containers_request",
    "patch",
    "raised",
    "replica",
    "resize",
    "resources",
    "stated",
]  # fmt: skip

MEMORY = ResourceLimit(
    "memory", names.MEMORY_RAISED_ANNOTATION, quantities.parse_bytes, quantities.format_bytes
)
limit_of, raised, stated, annotation = (
    MEMORY.limit_of,
    MEMORY.raised,
    MEMORY.stated,
    MEMORY.annotation,
)
resources, resize, replica = MEMORY.resources, MEMORY.resize, MEMORY.replica
patch, other_containers_request = MEMORY.patch, MEMORY.other_containers_request


def max_limit(manifest: Manifest) -> int:
    """The largest of the trainers' limits in a job's manifest, in bytes; 0 if none is stated."""
    try:
        job_kind = registry.kind_of(manifest)
        trainers = [job_kind.trainer(one) for one in job_kind.replicas(manifest)]
        return max((limit_of(trainer) or 0 for trainer in trainers), default=0)
    except (errors.ManifestError, LookupError, TypeError, StopIteration, ValueError):
        return 0  # not a job that could be admitted: nothing is known of it
