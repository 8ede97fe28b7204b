# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps each job's RunRecord up to date while it runs and completes it when it ends.

A database that is away costs log lines and the records of that while, never a reconcile.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.node_check_messages import NodeCheckReport
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import RunRecord, ServerSetup
from rover_kf.api.status import CoordinatorStatus
from rover_kf.elastic.node_check import verdict
from rover_kf.elastic.node_check.verdict import FleetBaselines
from rover_kf.history import recorder
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.limits import manifest_memory
from rover_kf.recommender import job_signature
from rover_kf.scaling import ps_model
from rover_kf.scaling.ps_model import PsModel, PsRow

LOG = logging.getLogger(__name__)

RUNS = 200
"""The newest, whose checks of nodes make the fleet's history."""
SIMILAR_RUNS_SECONDS = 600.0
"""How long what runs alike have shown is believed before it is read again."""
MAX_ROWS = 32
"""That a law is fitted to; the newest."""
MAX_FLEETS = 64
"""That are kept: one for each running job's newest check."""


def new_run_record(job: ObservedJob) -> RunRecord:
    """Return a job's record with what its manifest states; InputError if it is wrong."""
    read = job_signature.from_manifest(job.manifest, source=str(job.key))
    return recorder.new_record(
        job,
        signature=read.signature,
        requested=read.requested,
        every=read.checkpoint_every,
        storage=read.storage,
    )


class RunHistory:
    """The records of the jobs that this process watches; one thread a key."""

    def __init__(
        self, store: HistoryStore, emit: Callable[[JobKey, Event], None] | None = None
    ) -> None:
        self._store = store
        self._emit = emit
        self._unavailable: set[JobKey] = set()
        """Jobs that have been told that their run is not recorded now."""
        self._records: dict[JobKey, RunRecord] = {}
        """Newest record of a key, as it would be written."""
        self._fleets: dict[tuple[str, float], FleetBaselines] = {}
        """By the time of the check that it is for."""
        self._written: dict[JobKey, RunRecord] = {}
        self._rows: dict[JobKey, tuple[float, tuple[PsRow, ...]]] = {}
        """Of runs alike, for jobs with parameter servers, with until when they are believed."""

    def update(
        self,
        job: ObservedJob,
        status: CoordinatorStatus | None,
        decision: ScaleDecision | None,
        events: Iterable[Event],
        *,
        now: float,
        every: float,
        settled: bool = True,
    ) -> bool:
        """Fold in one look; written at most once in ``every`` seconds, and when the run ends.

        The job is settled where all workers and parameter servers that it states are at work. The
        result is whether the database holds all that matters of the run so far.
        """
        try:
            record = self._load_record(job)
        except errors.HistoryUnavailable as error:
            self._warn_unrecorded(job.key, error, now)
            return False
        except errors.InputError as error:
            LOG.warning("%s: its run cannot be recorded: %s", job.key, error)
            return True
        raised = (one.limit for one in manifest_memory.raised(job.manifest).values())
        record = recorder.update(
            record,
            job,
            status,
            decision=decision,
            events=events,
            memory_raised=max(raised, default=0),
            memory_limit=manifest_memory.max_limit(job.manifest),
            servers=_server_setup(job) if settled else None,
        )
        self._records[job.key] = record
        written = self._written.get(job.key)
        if written is not None and written == dataclasses.replace(
            record, updated_at=written.updated_at
        ):
            return True
        ended = record.outcome != recorder.RUNNING
        if written is not None and not ended and now - written.updated_at < every:
            return True
        return self._write(job.key, recorder.stamp(record, now), now)

    def fleet(self, check: NodeCheckReport | None, namespace: str) -> FleetBaselines:
        """What other checks of nodes showed, for one of a job; empty while it cannot be read.

        Tenants of other namespaces could report made-up figures: only those count that the
        administrator shares.
        """
        if check is None:
            return FleetBaselines()
        known = self._fleets.get((namespace, check.at))
        if known is not None:
            return known
        try:
            runs = self._store.list(visible_from=namespace, limit=RUNS)
        except errors.HistoryUnavailable as error:
            LOG.warning("a check is judged without history: %s", error)
            return FleetBaselines()
        others = (one for run in runs for one in run.preflights if one.at != check.at)
        found = self._fleets[namespace, check.at] = verdict.collect_baselines(others, check.at)
        while len(self._fleets) > MAX_FLEETS:
            del self._fleets[next(iter(self._fleets))]
        return found

    def fit_ps_model(self, job: ObservedJob, now: float) -> PsModel | None:
        """Of a job's parameter servers, by its own run and those of the same command.

        None while they have shown one setup alone, or nothing of them is known.
        """
        own = self._records.get(job.key)
        try:
            own = own or self._load_record(job)
            rows = self._similar_rows(job.key, own, now)
        except (errors.HistoryUnavailable, errors.InputError) as error:
            LOG.info("%s: runs alike tell nothing of its servers: %s", job.key, error)
            rows = ()
        if own is not None and own.uid == job.uid:
            if ps_model.last_change_at(own.servers, own.windows):
                rows = ()  # what runs before it were like, it is not any more
            rows = (*rows, *ps_model.median_rows(own.servers, own.windows))
        return ps_model.fit(rows[-MAX_ROWS:])

    def _similar_rows(self, key: JobKey, record: RunRecord, now: float) -> tuple[PsRow, ...]:
        """Rows of other runs of its command, those of the newest run last."""
        until, rows = self._rows.get(key, (0.0, ()))
        if now < until:
            return rows
        command = record.signature.command
        found = [
            run
            for run in self._store.similar(record.signature)
            if run.uid != record.uid and run.signature.command == command
        ]
        found.sort(key=lambda run: run.updated_at)
        rows = tuple(
            row for run in found for row in ps_model.median_rows(run.servers, run.windows)
        )[-MAX_ROWS:]
        self._rows[key] = (now + SIMILAR_RUNS_SECONDS, rows)
        return rows

    def delete(self, key: JobKey, now: float) -> None:
        """Complete the records of a job that is no longer there."""
        newest = self._records.get(key)
        if newest is not None and newest.outcome == recorder.RUNNING:
            # What was seen since it was written last: the job went before the next time.
            self._write(key, recorder.stamp(newest, now), now)
        self.forget(key)
        self._close_others(key, "", now)

    def _load_record(self, job: ObservedJob) -> RunRecord:
        record = self._records.get(job.key)
        if record is not None and record.uid == job.uid:
            return record
        self._drop(job.key)
        found = self._store.get(job.uid)
        if found is not None:
            self._written[job.key] = found
            return found
        self._close_others(job.key, job.uid, job.created_at)
        return new_run_record(job)

    def _close_others(self, key: JobKey, but_uid: str, now: float) -> None:
        """Runs of that name which are not there any more ended by being deleted."""
        try:
            open_runs = self._store.list(
                namespace=key.namespace, name=key.name, outcome=recorder.RUNNING
            )
            for record in open_runs:
                if record.signature.kind == key.kind and record.uid != but_uid:
                    self._store.upsert(recorder.mark_deleted(record, now))
        except errors.HistoryUnavailable as error:
            LOG.warning("%s: its deletion is not recorded: %s", key, error)

    def _write(self, key: JobKey, record: RunRecord, now: float) -> bool:
        try:
            self._store.upsert(record)
        except errors.HistoryUnavailable as error:
            self._warn_unrecorded(key, error, now)
            return False
        self._written[key] = record
        self._unavailable.discard(key)
        return True

    def _warn_unrecorded(self, key: JobKey, error: errors.HistoryUnavailable, now: float) -> None:
        """Say once for each time that it is away that the run goes on unrecorded."""
        LOG.warning("%s: its run is not recorded now: %s", key, error)
        if self._emit is None or key in self._unavailable:
            return
        self._unavailable.add(key)
        message = f"the run goes on and is not recorded now: {error}"
        event = Event(names.EVENT_HISTORY_UNAVAILABLE, message, warning=True, at=now)
        try:
            self._emit(key, event)
        except errors.ClusterUnavailable as refusal:
            LOG.warning("%s: that its run is not recorded could not be told: %s", key, refusal)

    def forget(self, key: JobKey) -> None:
        """Drop what is cached of the job."""
        self._drop(key)
        self._unavailable.discard(key)

    def _drop(self, key: JobKey) -> None:
        self._records.pop(key, None)
        self._written.pop(key, None)
        self._rows.pop(key, None)


def _server_setup(job: ObservedJob) -> ServerSetup | None:
    try:
        return job_signature.server_setup(job.manifest)
    except errors.InputError as error:
        LOG.warning("%s: its parameter servers are not recorded: %s", job.key, error)
        return None
