# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator of a job that has ended left in its container's status; pure."""

from __future__ import annotations

from collections.abc import Sequence

from rover_kf.api import last_status, names
from rover_kf.api.jobs import Container, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.reconcilers.plan import Observed

AWAITED_SECONDS = 20.0
"""After a job's end; its coordinator lingers for up to ten seconds."""


def left(job: ObservedJob, pods: Sequence[Pod]) -> CoordinatorStatus | None:
    """The last status, with the Events that no controller has asked beyond; None if there is none.

    Args:
        job: with its phase.
        pods: of the job, the first pod's first.
    """
    sidecar = _coordinators_container(job, pods)
    if sidecar is None:
        return None
    return last_status.unpack(sidecar.last_words, f"{job.key}: the coordinator's container")


def come(seen: Observed, now: float) -> bool:
    """Whether they are to be waited for.

    The job has just ended, its coordinator does not answer any more, and the kubelet has not said
    yet that its container is gone.
    """
    sidecar = _coordinators_container(seen.job, seen.pods)
    if seen.status is not None or sidecar is None or not sidecar.running:
        return False
    return now - (seen.job.finished_at or 0.0) < AWAITED_SECONDS


def _coordinators_container(job: ObservedJob, pods: Sequence[Pod]) -> Container | None:
    if not job.finished or not pods or pods[0].replica_index != 0:
        return None
    found = (one for one in pods[0].containers if one.name == names.SIDECAR_CONTAINER)
    return next(found, None)
