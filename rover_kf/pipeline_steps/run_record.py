# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run as a step can know it: by the history, else by what stands on the job itself.

A step seldom has the controller's history at hand (it takes an address and a certificate). The
job's annotation, its Events and its status tell of the end and of what was done, without windows
of throughput.
"""

from __future__ import annotations

import dataclasses

from rover_kf import errors
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.client import RoverClient
from rover_kf.history import recorder
from rover_kf.pipeline_steps.job_events import EventReader
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.run_recording import new_run_record


def read_record(rover: RoverClient, key: JobKey) -> RunRecord:
    """The newest run of a job.

    Raises:
        NoSuchJob: neither the history nor the cluster knows of it.
    """
    try:
        found = rover.record(key)
    except errors.HistoryUnavailable:
        found = None
    if found is not None:
        return found
    try:
        job = rover.get(key)
    except errors.NoSuchJob as gone:
        raise errors.NoSuchJob(
            f"{key} is not there, and the history has no run of it: report before the job is "
            "deleted, or give the controller's history (docs/history.md, Over HTTP)"
        ) from gone
    events = EventReader(rover).events(key)
    return dataclasses.replace(
        _record_from_job(job),
        events=tuple(events),
        updated_at=max([_end(job), *(e.at for e in events)]),
    )


def _record_from_job(job: ObservedJob) -> RunRecord:
    memory = status_annotation.read(job)
    record = recorder.update(new_run_record(job), job, None, decision=memory.decision)
    return dataclasses.replace(
        record,
        steps=memory.step,
        total_steps=memory.total_steps,
        restarts=memory.restarts,
        verdict=memory.verdict,
    )


def _end(job: ObservedJob) -> float:
    return job.finished_at or status_annotation.read(job).written_at or job.created_at
