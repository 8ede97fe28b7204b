# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job is paused and resumed by hand: its pods end with their state on storage, and come back.

Pods that are told to end agree on a step, save it and make it durable before they go
(docs/architecture.md), so that is what a pause waits for; the patch is all that it does itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.tables import Shown
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers.scaling import managed_elsewhere

LOOK_SECONDS = 0.2
_PATH = f"{names.PREFIX}checkpoint.path"


@dataclasses.dataclass(frozen=True, slots=True)
class Paused(Shown):
    """What a pause came to."""

    job: ObservedJob
    step: int
    """Newest step that was seen, of any rank."""
    durable_step: int | None
    """Newest step that was seen on storage; the pods' last word may not have been heard."""
    pods: int
    """That were still ending when the wait was over."""

    def _html_title(self) -> str:
        return f"{self.job.key} is paused"

    def _html_rows(self) -> Iterable[Sequence[object]]:
        yield "newest step seen", self.step
        yield "newest step seen on storage", self.durable_step
        yield "pods still ending", self.pods


def pause(cluster: Cluster, key: JobKey, *, wait: float = 120.0, force: bool = False) -> Paused:
    """Suspend a job and wait until its pods have gone.

    Args:
        cluster: where it is.
        key: of the job.
        wait: most seconds to wait for the pods' end; they go on ending after it.
        force: also where what it has done is in its pods' memory alone, and lost.

    Raises:
        InputError: it has ended, is another's to suspend, or would lose what it has done.
    """
    job = cluster.get_job(key)
    if why := refusal(job, force=force):
        raise errors.InputError(f"{job.key} is not paused: {why}")
    if not job.suspended:
        job = cluster.patch_job(key, {"spec": {"runPolicy": {"suspend": True}}})
        _tell(cluster, key, names.EVENT_SUSPENDED, "paused by hand; rover-kf resume lets it go on")
    return _wait(cluster, job, time.monotonic() + wait)


def refusal(job: ObservedJob, *, force: bool = False) -> str:
    """Why a job cannot be paused; empty if it can."""
    if job.finished or job.deleting:
        return f"it is {'being deleted' if job.deleting else job.phase}"
    if why := managed_elsewhere(job):
        return f"{why}; suspend it there"
    if force or job.suspended or _PATH in job.annotations:
        return ""
    return (
        f"annotation {_PATH} is not there, so what it has done is in its pods' memory alone; set "
        "it to a folder on shared storage, or pause with --force and begin anew"
    )


def resume(cluster: Cluster, key: JobKey) -> ObservedJob:
    """Let a suspended job go on; one that is not suspended is left as it is.

    Raises:
        InputError: it has ended, or is another's to resume.
    """
    job = cluster.get_job(key)
    if job.finished or job.deleting:
        raise errors.InputError(f"{job.key} is not resumed: it is {job.phase or 'being deleted'}")
    if why := managed_elsewhere(job):
        raise errors.InputError(f"{job.key} is not resumed: {why}; resume it there")
    if not job.suspended:
        return job
    job = cluster.patch_job(key, {"spec": {"runPolicy": {"suspend": False}}})
    _tell(cluster, key, names.EVENT_RESUMED, "resumed by hand")
    return job


def _wait(cluster: Cluster, job: ObservedJob, until: float) -> Paused:
    found = Paused(job, 0, None, 0)
    while True:
        with contextlib.suppress(errors.ClusterUnavailable):  # it ends, too
            status = coordinator_status.ask(cluster, job.key, after=names.NO_EVENTS)
            step = max(found.step, status.step)
            durable = max(found.durable_step or 0, status.durable_step or 0) or None
            found = dataclasses.replace(found, step=step, durable_step=durable)
        found = dataclasses.replace(found, pods=len(cluster.list_pods(job.key)))
        if not found.pods or time.monotonic() >= until:
            return found
        time.sleep(LOOK_SECONDS)


def _tell(cluster: Cluster, key: JobKey, reason: str, message: str) -> None:
    with contextlib.suppress(errors.InputError):  # not everybody may make Events
        cluster.emit(key, Event(reason, message, at=time.time()))
