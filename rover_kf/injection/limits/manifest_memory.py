# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's memory limit in a manifest, in bytes, and what it was before; pure."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection import adapters, quantities
from rover_kf.injection.limits.raised_limit import Raise, ResourceLimit

__all__ = ["MEMORY", "Raise", "annotation", "beside", "most", "of", "patch", "raised", "replica",
           "resize", "resources", "stated"]  # fmt: skip

MEMORY = ResourceLimit(
    "memory", names.MEMORY_RAISED_ANNOTATION, quantities.parse_bytes, quantities.format_bytes
)
of, raised, stated, annotation = MEMORY.of, MEMORY.raised, MEMORY.stated, MEMORY.annotation
resources, resize, replica = MEMORY.resources, MEMORY.resize, MEMORY.replica
patch, beside = MEMORY.patch, MEMORY.beside


def most(manifest: Manifest) -> int:
    """The largest of the trainers' limits in a job's manifest, in bytes; 0 if none is stated."""
    try:
        adapter = adapters.adapter_for(manifest)
        trainers = [adapter.trainer(one) for one in adapter.replicas(manifest)]
        return max((of(trainer) or 0 for trainer in trainers), default=0)
    except (errors.ManifestError, LookupError, TypeError, StopIteration, ValueError):
        return 0  # not a job that could be admitted: nothing is known of it
