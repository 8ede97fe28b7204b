# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What our containers may use. The arena is charged to the sidecar, which touches it first."""

from __future__ import annotations

from rover_kf.injection import quantities, sizing
from rover_kf.injection.injection_plan import ReplicaPlan

CPU = "50m"
GUARANTEED_CPU = "500m"
"""In a pod of class Guaranteed every container needs a CPU limit equal to its request."""

Resources = dict[str, dict[str, str]]


def sidecar(plan: ReplicaPlan) -> Resources:
    """Requests and limits of the sidecar; HPA and quotas need both to be stated."""
    return _resources(plan, sizing.SIDECAR_MEMORY + plan.arena_bytes)


def runtime(plan: ReplicaPlan) -> Resources:
    """Requests and limits of the init container, which copies a few files."""
    return _resources(plan, sizing.SIDECAR_MEMORY)


def _resources(plan: ReplicaPlan, count: int) -> Resources:
    memory = quantities.format_bytes(count)
    if plan.guaranteed:
        exact = {"cpu": GUARANTEED_CPU, "memory": memory}
        return {"limits": exact, "requests": dict(exact)}
    return {"limits": {"memory": memory}, "requests": {"cpu": CPU, "memory": memory}}
