# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline's exit handler does about the jobs of its run."""

from __future__ import annotations

from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.client import RoverClient
from rover_kf.steps.step import Step


def clean(
    rover: RoverClient, step: Step, *, finished: bool = False, say: Callable[[str], None] = print
) -> tuple[JobKey, ...]:
    """Delete the labelled jobs that steps of the step's run have launched; which ones.

    Args:
        rover: the client of the place where they are.
        step: says the run, and the namespace.
        finished: those that have ended, too.
        say: takes the lines of the log.

    Raises:
        InputError: the run is not known.
        ClusterUnavailable: the API server does not answer.
    """
    if not step.run:
        raise errors.InputError(
            "whose jobs to delete is not known: outside of Kubeflow's own pods, give the run as "
            "dsl.PIPELINE_JOB_ID_PLACEHOLDER"
        )
    deleted = []
    for job in rover.list(step.namespace):
        if job.annotations.get(names.LAUNCH_RUN_ANNOTATION) != step.run:
            continue
        if job.finished and not finished:
            say(f"{job.key} is {job.phase}: left")
            continue
        rover.delete(job.key)
        say(f"{job.key} is deleted")
        deleted.append(job.key)
    say(f"{len(deleted)} jobs of run {step.run} deleted")
    return tuple(deleted)
