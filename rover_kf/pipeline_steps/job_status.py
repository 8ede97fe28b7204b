# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look at a job by a step, with what its rights allow.

A step may be in a namespace from which the coordinator is not to be reached. What the controller
wrote on the job itself a window ago is then the newest that can be had.
"""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.client import Progress, RoverClient
from rover_kf.client.progress.job_progress import carry_over
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.status_annotation import JobStatus


def observe_job(rover: RoverClient, job: ObservedJob, last: Progress | None) -> Progress:
    """Where a job stands, by its coordinator, else by its annotation, else as seen last.

    Args:
        rover: asks.
        job: as it was just read.
        last: look; None: this is the first.

    Raises:
        ClusterUnavailable: the API server does not answer.
    """
    now = rover.progress(job.key)
    if now.activity:
        return now
    return carry_over(with_annotation(now, status_annotation.read(job)), last)


def with_annotation(now: Progress, memory: JobStatus) -> Progress:
    """The progress with what the controller wrote on the job; pure."""
    if now.activity or not memory.phase:
        return now
    return dataclasses.replace(
        now,
        activity="" if now.finished else memory.phase,
        nodes=memory.nodes,
        step=memory.step,
        total_steps=memory.total_steps,
        samples_per_second=memory.samples_per_second,
        sealed_step=memory.sealed_step,
        durable_step=memory.durable_step,
        restarts=memory.restarts,
        verdict=memory.verdict,
    )


def run_metrics(rover: RoverClient, key: JobKey, last: Progress) -> dict[str, float]:
    """Numbers of a run for a step's metrics: of its record, else of the last look.

    Args:
        rover: asks the history.
        key: the job.
        last: look at it.
    """
    try:
        record = rover.record(key)
    except errors.HistoryUnavailable:
        record = None
    steps = last.step if record is None else record.steps
    restarts = last.restarts if record is None else record.restarts
    goodput = last.goodput if record is None else record.goodput
    found = {"steps": float(steps), "restarts": float(restarts)}
    if goodput is not None and goodput.total:
        found |= {"goodput": goodput.fraction, "seconds": goodput.total}
    return found
