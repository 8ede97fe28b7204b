# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Fields of the job that decide how it ends and restarts; changed only where they would harm.

None is taken away again: afterwards it cannot be told from what a user wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.injection import keyed_lists
from rover_kf.injection.injection_plan import ReplicaPlan

GRACE_SECONDS, MAX_GRACE_SECONDS = 30, 600
"""Between SIGTERM and SIGKILL; the least is Kubernetes' own default."""
_MIB = 1 << 20
BYTES_PER_SECOND = 100e6
"""What a slow network volume takes; the state has to be durable before the pod is killed."""


def apply_replica(
    spec: Mapping[str, Any], plan: ReplicaPlan
) -> tuple[dict[str, Any], tuple[Event, ...]]:
    """Write replicas out and replace restartPolicy Never.

    The operator never stores its default of replicas, and a scale patch needs a value there.

    Under Never a pod that ends by eviction or scale-down fails the whole job. ExitCode keeps what
    Never is chosen for, a failing script ends the job at once (rover-run exits with 1), while a
    pod that is lost (128 and above) is made anew. OnFailure would restart a failing script forever.
    """
    written = {**spec, "replicas": plan.replica.replicas}
    policy = spec.get("restartPolicy") or plan.job_kind.restart_policy
    if policy != "Never" or plan.rewritten is None:
        return written, ()
    message = (
        f"{plan.replica.path}.restartPolicy Never became ExitCode: a failing script still ends "
        "the job at once, one that is killed no longer does"
    )
    warning = Event(names.EVENT_INJECTED, message, warning=True)
    return {**written, "restartPolicy": "ExitCode"}, (warning,)


def grace_seconds(
    pod: keyed_lists.Tree, arena_bytes: int, storage_rate: float | None = None
) -> int:
    """Time to end: drain the world, make one slot of two durable, stop; or more, if stated.

    Args:
        pod: its spec.
        arena_bytes: of all slots.
        storage_rate: bytes a second that storage takes of a pod; None: it was not measured.
    """
    persist = math.ceil(arena_bytes / 2 / (storage_rate or BYTES_PER_SECOND))
    needed = min(names.DRAIN_SECONDS + persist + names.END_SECONDS, MAX_GRACE_SECONDS)
    return max(pod.get("terminationGracePeriodSeconds") or 0, needed, GRACE_SECONDS)


def termination_grace(pod: keyed_lists.Tree, plan: ReplicaPlan) -> int:
    """The same of a replica type's pods, by its job's policy."""
    return grace_seconds(pod, plan.arena_bytes, plan.policy.checkpoint.storage_bandwidth)


def describe_termination_grace(plan: ReplicaPlan) -> str:
    """One line for a person: how long a pod may take to end, and by which figures."""
    rate = plan.policy.checkpoint.storage_bandwidth
    basis = (
        f"{names.PREFIX}checkpoint.storage-bandwidth"
        if rate
        else "assumed: no run has shown what this storage takes"
    )
    seconds = termination_grace(plan.replica.spec["template"]["spec"], plan)
    return (
        f"{plan.replica.path}: a pod has {seconds} s to end, for a snapshot of up to "
        f"{plan.arena_bytes / 2 / _MIB:.0f} MiB at {(rate or BYTES_PER_SECOND) / 1e6:.0f} MB/s "
        f"({basis})"
    )


def apply_pod(pod: keyed_lists.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Leave enough time to end; where the default is enough it stays unwritten."""
    needed = termination_grace(pod, plan)
    if needed == GRACE_SECONDS and pod.get("terminationGracePeriodSeconds") is None:
        return dict(pod)
    return {**pod, "terminationGracePeriodSeconds": needed}


def apply_job(spec: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """Under a gang scheduler let the job start with its fewest pods."""
    policy = spec.get("runPolicy") or {}
    scheduling = policy.get("schedulingPolicy")
    if not scheduling:
        return dict(spec)
    gang = {**scheduling, "minAvailable": nodes}
    return {**spec, "runPolicy": {**policy, "schedulingPolicy": gang}}
