# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job is paused and resumed by hand: its pods end with their state on storage, and come back.

Pods that are told to end agree on a step, save it and make it durable before they go
(docs/explanation/guarantees.md), so that is what a pause waits for; the patch is all that it does
itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.client import patches
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.system.html_tables import NotebookTable

POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class SuspendResult(NotebookTable):
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


def pause(
    cluster: Cluster, key: JobKey, *, wait: float = 120.0, force: bool = False
) -> SuspendResult:
    """Suspend a job and wait until its pods have gone; they go on ending after the wait.

    With ``force`` also where what the job has done is in its pods' memory alone, and lost.
    """
    wanted = patches.suspend_job(cluster.get_job(key), force=force)
    job = wanted.job
    if wanted.patch:
        job = cluster.patch_job(key, wanted.patch)
        _emit(cluster, key, names.EVENT_SUSPENDED, "paused by hand; rover-kf resume lets it go on")
    return _wait(cluster, job, time.monotonic() + wait)


def resume(cluster: Cluster, key: JobKey) -> ObservedJob:
    """Let a suspended job go on; one that is not suspended is left as it is."""
    wanted = patches.resume_job(cluster.get_job(key))
    if not wanted.patch:
        return wanted.job
    job = cluster.patch_job(key, wanted.patch)
    _emit(cluster, key, names.EVENT_RESUMED, "resumed by hand")
    return job


def _wait(cluster: Cluster, job: ObservedJob, until: float) -> SuspendResult:
    found = SuspendResult(job, 0, None, 0)
    while True:
        with contextlib.suppress(errors.ClusterUnavailable):  # it ends, too
            status = coordinator_status.fetch(cluster, job.key, after=names.NO_EVENTS)
            step = max(found.step, status.step)
            durable = max(found.durable_step or 0, status.durable_step or 0) or None
            found = dataclasses.replace(found, step=step, durable_step=durable)
        found = dataclasses.replace(found, pods=len(cluster.list_pods(job.key)))
        if not found.pods or time.monotonic() >= until:
            return found
        time.sleep(POLL_SECONDS)


def _emit(cluster: Cluster, key: JobKey, reason: str, message: str) -> None:
    with contextlib.suppress(errors.InputError):  # not everybody may make Events
        cluster.emit(key, Event(reason, message, at=time.time()))
