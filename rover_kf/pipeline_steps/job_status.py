# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's status within a step's rights, and the step's log.

Where a namespace cannot reach the coordinator, the job's annotation is the newest status. The
account ``pipeline-runner`` of a stand-alone Kubeflow Pipelines has no right to Events; missing
rights must not end a step. Without the controller's history, annotation, Events and status give a
run's record, except its windows of throughput.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Iterable
from typing import final

from rover_kf import errors
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.client import Progress, RoverClient
from rover_kf.client.job_progress import carry_over
from rover_kf.client.progress_text import format_event, format_step
from rover_kf.history import recorder
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.run_recording import new_run_record
from rover_kf.reconcilers.status_annotation import JobStatus

NUMBER_SECONDS = 15.0
"""Least time between two lines that differ in numbers only."""


class StepLog:
    """A log of a step that has each piece of news once."""

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._logged: set[tuple[str, str, float]] = set()
        self._state: tuple[object, ...] = ()
        self._line, self._logged_at = "", 0.0

    def log_events(self, events: Iterable[Event]) -> None:
        """Tell those that were not told yet."""
        for event in events:
            mark = (event.reason, event.message, event.at)
            if mark not in self._logged:
                self._logged.add(mark)
                self._say(format_event(event, dt.timezone.utc))

    def log_progress(self, now: Progress) -> None:
        """Tell where the job stands, if that has changed."""
        state = (now.phase, now.activity, now.replicas, now.running, now.nodes, now.restarts)
        line = format_progress(now)
        late = self._clock() - self._logged_at >= NUMBER_SECONDS
        if state != self._state or (line != self._line and late):
            self._state, self._line, self._logged_at = state, line, self._clock()
            self._say(line)


def format_progress(now: Progress) -> str:
    """Where a job stands."""
    total = f"/{now.total_steps}" if now.total_steps else ""
    parts = [
        f"{now.phase or 'New'}{f' ({now.activity})' if now.activity else ''}",
        f"pods {now.running}/{now.replicas}",
        f"step {now.step}{total}",
        f"{now.samples_per_second:.0f} samples/s",
        f"in memory {format_step(now.sealed_step)}",
        f"durable {format_step(now.durable_step)}",
        f"restarts {now.restarts}",
    ]
    if now.goodput is not None and now.goodput.total:
        parts.append(f"goodput {now.goodput.fraction:.0%}")
    return f"{now.job}: " + ", ".join(parts)


@final
class EventReader:
    """A reader of Events that stops once it is refused, and reports that once."""

    def __init__(self, rover: RoverClient, say: Callable[[str], None] = print) -> None:
        self._rover, self._say = rover, say
        self._denied = False

    def events(self, key: JobKey) -> tuple[Event, ...]:
        """Those of the job, oldest first; none once they were refused, which is told once.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        if self._denied:
            return ()
        try:
            return tuple(self._rover.events(key))
        except errors.InputError as refusal:
            self._denied = True
            self._say(
                f"note: Events are not told: {refusal}; "
                "docs/components.md (Rights) has the role that lets steps read them"
            )
            return ()


def observe_job(rover: RoverClient, job: ObservedJob, last: Progress | None) -> Progress:
    """Return where a job stands, by its coordinator, its annotation, or the last look.

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
    """Return a run's numbers for a step's metrics: of its record, else of the last look."""
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
