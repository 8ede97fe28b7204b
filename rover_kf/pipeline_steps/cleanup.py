# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cleanup of a pipeline's exit handler: it ends the jobs that the run has started.

The terms of a launching step (on_stop, launch.on-lease-expired) are for stopped steps, not for
this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.client import RoverClient
from rover_kf.pipeline_steps.step_context import StepContext

T = TypeVar("T")

RETRY_SECONDS = 60.0
"""How long an API server that is away, and pods that end, are waited for."""
PAUSE_SECONDS = 1.0


def delete_run_jobs(
    rover: RoverClient,
    step: StepContext,
    *,
    finished: bool = False,
    say: Callable[[str], None] = print,
    pause: float = PAUSE_SECONDS,
) -> tuple[JobKey, ...]:
    """Delete the labelled jobs that steps of this run have launched; return their keys.

    A job that cannot be deleted does not protect the others. Ends with their pods, after a minute
    at most. ``finished``: delete ended jobs, too.

    Raises:
        InputError: the run is not known, or a job may not be deleted.
        ClusterUnavailable: the API server does not answer.
    """
    if not step.run:
        raise errors.InputError(
            "whose jobs to delete is not known: outside of Kubeflow's own pods, give the run as "
            "dsl.PIPELINE_JOB_ID_PLACEHOLDER"
        )
    until = time.monotonic() + RETRY_SECONDS
    deleted, refused = [], []
    for job in _retry(lambda: rover.list(step.namespace), until, say, pause):
        if job.annotations.get(names.LAUNCH_RUN_ANNOTATION) != step.run:
            continue
        if job.finished and not finished:
            say(f"{job.key} is {job.phase}: left")
            continue
        try:
            _retry(lambda key=job.key: rover.delete(key), until, say, pause)  # type: ignore[misc]
        except errors.RoverError as cause:
            say(f"{job.key} could not be deleted: {cause}")
            refused.append(cause)
            continue
        say(f"{job.key} is deleted")
        deleted.append(job.key)
    for key in _wait_deleted(rover, deleted, until, pause):
        say(f"{key} is still ending")
    say(f"{len(deleted)} jobs of run {step.run} deleted")
    if refused:
        raise refused[0]
    return tuple(deleted)


def _retry(call: Callable[[], T], until: float, say: Callable[[str], None], pause: float) -> T:
    """Call it until the API server answers: nobody comes after the exit handler."""
    while True:
        try:
            return call()
        except errors.ClusterUnavailable as away:  # noqa: PERF203 - a retry is what the loop is for
            if time.monotonic() > until:
                raise
            say(f"tried again: {away}")
            time.sleep(pause)


def _wait_deleted(
    rover: RoverClient, keys: list[JobKey], until: float, pause: float
) -> list[JobKey]:
    left = list(keys)
    while left := [key for key in left if _exists(rover, key)]:
        if time.monotonic() > until:
            break
        time.sleep(pause)
    return left


def _exists(rover: RoverClient, key: JobKey) -> bool:
    try:
        return bool(rover.cluster.list_pods(key)) or bool(rover.get(key))
    except errors.ClusterUnavailable:
        return True
    except (errors.NoSuchJob, errors.InputError):  # gone, or not to be looked at
        return False
