# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What scaling, pausing and resuming write on a job, and why they do not.

The verbs send these patches, and a dry run shows them: the two cannot differ. Pods that are told to
end agree on a step, save it and make it durable before they go (docs/explanation/guarantees.md), so
that is what a pause waits for; the patch is all that it does itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob
from rover_kf.cluster.local.job_conditions import merge
from rover_kf.cluster.protocol import Cluster, fetch_status
from rover_kf.injection import patch_diff, sizing
from rover_kf.injection.validation import validate
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.policy_source import external_manager_reason
from rover_kf.system.html_tables import NotebookTable

_PATH = f"{names.PREFIX}checkpoint.path"


@dataclasses.dataclass(frozen=True, slots=True)
class JobChange:
    """Of one job."""

    job: ObservedJob
    """As it is."""
    patch: Manifest
    """JSON merge patch (RFC 7386); empty: the job is so already."""

    @property
    def diff(self) -> str:
        """Unified diff of what the job says; empty if it would say the same."""
        before = self.job.manifest
        return patch_diff.diff(before, merge(before, self.patch), source=str(self.job.key))


def resize_job(job: ObservedJob, workers: int) -> JobChange:
    """Another number of Worker replicas.

    Raises:
        InputError: outside of what the job allows, or a TFJob whose size is fixed.
    """
    job_kind = kind_of_job(job)
    if not job_kind.elastic and not job_kind.is_dynamic(job.manifest):
        message = f"{job.key}: its size is fixed: suspend it, change it, resume it"
        raise errors.InputError(message)
    check_workers(job, workers)
    # Whatever else changes on the job meanwhile, this is what its owner wants.
    return JobChange(job, {"spec": job_kind.replicas_patch({"Worker": workers})})


def check_workers(job: ObservedJob, workers: int) -> None:
    """Refuse a number of Worker replicas that the job may not have.

    Raises:
        InputError: with those that it may; or its annotations are wrong.
    """
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise errors.InputError(f"{job.key}: {workers!r} worker replicas; allowed: a whole number")
    policy = validate.validate(job.manifest, allow_unmounted=True)
    low, high = sizing.worker_bounds(JobSpec.from_observed(job), policy)
    sizes = policy.scaling.sizes
    if not low <= workers <= high:
        allowed = f"{low} to {high} (scaling.min and scaling.max, else spec.elasticPolicy)"
    elif sizes and workers not in sizes:
        allowed = f"{', '.join(map(str, sizes))} (scaling.sizes)"
    else:
        return
    raise errors.InputError(f"{job.key}: {workers} worker replicas; allowed: {allowed}")


def suspend_job(job: ObservedJob, *, force: bool = False) -> JobChange:
    """The job suspended.

    Args:
        job: as observed.
        force: also where what it has done is in its pods' memory alone, and lost.

    Raises:
        InputError: it has ended, is another's to suspend, or would lose what it has done.
    """
    if why := suspend_denial_reason(job, force=force):
        raise errors.InputError(f"{job.key} is not paused: {why}")
    return JobChange(job, {} if job.suspended else _suspend(job, suspended=True))


def suspend_denial_reason(job: ObservedJob, *, force: bool = False) -> str:
    """Why a job cannot be paused; empty if it can."""
    if job.finished or job.deleting:
        return f"it is {'being deleted' if job.deleting else job.phase}"
    if why := external_manager_reason(job):
        return f"{why}; suspend it there"
    if force or job.suspended or _PATH in job.annotations:
        return ""
    return (
        f"annotation {_PATH} is not there, so what it has done is in its pods' memory alone; set "
        "it to a folder on shared storage, or pause with --force and begin anew"
    )


def resume_job(job: ObservedJob) -> JobChange:
    """The job going on.

    Raises:
        InputError: it has ended, or is another's to resume.
    """
    if job.finished or job.deleting:
        raise errors.InputError(f"{job.key} is not resumed: it is {job.phase or 'being deleted'}")
    if why := external_manager_reason(job):
        raise errors.InputError(f"{job.key} is not resumed: {why}; resume it there")
    return JobChange(job, _suspend(job, suspended=False) if job.suspended else {})


def _suspend(job: ObservedJob, *, suspended: bool) -> Manifest:
    return {"spec": kind_of_job(job).suspend_patch(suspended=suspended)}


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
    wanted = suspend_job(cluster.get_job(key), force=force)
    job = wanted.job
    if wanted.patch:
        job = cluster.patch_job(key, wanted.patch)
        _emit(cluster, key, names.EVENT_SUSPENDED, "paused by hand; rover-kf resume lets it go on")
    return _wait(cluster, job, time.monotonic() + wait)


def resume(cluster: Cluster, key: JobKey) -> ObservedJob:
    """Let a suspended job go on; one that is not suspended is left as it is."""
    wanted = resume_job(cluster.get_job(key))
    if not wanted.patch:
        return wanted.job
    job = cluster.patch_job(key, wanted.patch)
    _emit(cluster, key, names.EVENT_RESUMED, "resumed by hand")
    return job


def _wait(cluster: Cluster, job: ObservedJob, until: float) -> SuspendResult:
    found = SuspendResult(job, 0, None, 0)
    while True:
        with contextlib.suppress(errors.ClusterUnavailable):  # it ends, too
            status = fetch_status(cluster, job.key, after=names.NO_EVENTS)
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
