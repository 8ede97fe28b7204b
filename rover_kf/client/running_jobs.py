# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that run: waited for and watched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.client import results
from rover_kf.client.connection import Connection
from rover_kf.client.progress.job_progress import (
    Progress,
    carry_over,
    make_progress,
    with_final_record,
)
from rover_kf.client.views import EventList
from rover_kf.cluster import coordinator_status

POLL_SECONDS = 0.2


def wait(
    connection: Connection,
    key: JobKey,
    phases: Collection[str],
    *,
    timeout: float | None,
    every: float = POLL_SECONDS,
) -> ObservedJob:
    """Wait until the job's phase is one of those."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        job = connection.cluster.get_job(key)
        if job.finished:
            connection.reconcilers.wait_recorded(key)
        if job.phase in phases:
            return job
        if job.finished:
            why = results.final_reason(connection.cluster, connection.history, key)
            raise errors.JobFailed(f"{key} is {job.phase}: {why}")
        if deadline is not None and time.monotonic() > deadline:
            expected = " or ".join(sorted(phases))
            raise errors.WaitTimeout(
                f"{key} is {job.phase or 'new'}, not {expected}, after {timeout:g} s; it goes on"
            )
        time.sleep(every)


def progress(connection: Connection, key: JobKey) -> Progress:
    """Where the job stands, with what the history keeps of one that has ended."""
    try:
        status = coordinator_status.fetch(connection.cluster, key, after=names.NO_EVENTS)
    except errors.ClusterUnavailable:
        status = None
    job = connection.cluster.get_job(key)
    seen = make_progress(job, connection.cluster.list_pods(key), status)
    if status is None and seen.finished:
        seen = with_final_record(seen, results.run_of(connection.history, job))
    return dataclasses.replace(seen, timestamp=time.time())


def watch(connection: Connection, key: JobKey, *, every: float) -> Iterator[Progress]:
    """Progress with the Events since the last look, until the job's end."""
    seen: set[Event] = set()
    last: Progress | None = None
    while True:
        now = progress(connection, key)
        if now.finished:
            connection.reconcilers.wait_recorded(key)
        fresh = tuple(event for event in events(connection, key) if event not in seen)
        seen.update(fresh)
        # The coordinator goes before the job does: what it said last still stands.
        last = dataclasses.replace(carry_over(now, last), events=fresh)
        yield last
        if last.finished:
            return
        time.sleep(every)


def events(connection: Connection, key: JobKey) -> EventList:
    """Events of the cluster; of a job that is gone those of the history."""
    if current := connection.cluster.list_events(key):
        return EventList(current)
    try:
        connection.cluster.get_job(key)
    except errors.NoSuchJob:
        record = results.latest_run(connection.history, key)
        if record is None:
            raise
        return EventList(record.events)
    return EventList(())
