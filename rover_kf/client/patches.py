# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What scaling, pausing and resuming write on a job, and why they do not; pure.

The verbs send these patches, and a dry run shows them: the two cannot differ.
"""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest, ObservedJob
from rover_kf.client import submit_checks
from rover_kf.cluster.local.job_conditions import merge
from rover_kf.injection import patch_diff
from rover_kf.injection.validation import tfjob_rules
from rover_kf.reconcilers.policy_source import external_manager_reason

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
    is_tfjob = job.key.kind == names.TFJOB
    if is_tfjob and not tfjob_rules.is_dynamic(job.manifest):
        message = f"{job.key}: its size is fixed: suspend it, change it, resume it"
        raise errors.InputError(message)
    submit_checks.check_workers(job, workers)
    specs = "tfReplicaSpecs" if is_tfjob else "pytorchReplicaSpecs"
    # Whatever else changes on the job meanwhile, this is what its owner wants.
    return JobChange(job, {"spec": {specs: {"Worker": {"replicas": workers}}}})


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
    return JobChange(job, {} if job.suspended else _suspend(suspended=True))


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
    return JobChange(job, _suspend(suspended=False) if job.suspended else {})


def _suspend(*, suspended: bool) -> Manifest:
    return {"spec": {"runPolicy": {"suspend": suspended}}}
