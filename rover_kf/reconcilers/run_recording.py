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
from rover_kf.api.faults.node_check_messages import Preflight
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import RunRecord, ServerSetup
from rover_kf.api.status import CoordinatorStatus
from rover_kf.elastic.node_check import fleet
from rover_kf.elastic.node_check.fleet import Fleet
from rover_kf.history import recorder
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.limits import manifest_memory
from rover_kf.recommender import job_signature
from rover_kf.scaling import ps_model
from rover_kf.scaling.ps_model import ServerModel, ServerRow

LOG = logging.getLogger(__name__)

RUNS = 200
"""The newest, whose checks of nodes make the fleet's history."""
ALIKE_SECONDS = 600.0
"""How long what runs alike have shown is believed before it is read again."""
MOST_ROWS = 32
"""That a law is fitted to; the newest."""
FLEETS = 64
"""That are kept: one for each running job's newest check."""


def begun(job: ObservedJob) -> RunRecord:
    """A job's record with what its manifest tells, before anything of its run is known.

    Raises:
        InputError: the manifest cannot be read.
    """
    read = job_signature.of(job.manifest, source=str(job.key))
    return recorder.begin(
        job,
        signature=read.signature,
        requested=read.requested,
        every=read.checkpoint_every,
        storage=read.storage,
    )


class RunHistory:
    """The records of the jobs that this process watches.

    Not shared between workers of one key: the key queue sees to that.

    Args:
        store: where records are kept.
        tell: puts an Event on a job; none by default.
    """

    def __init__(
        self, store: HistoryStore, tell: Callable[[JobKey, Event], None] | None = None
    ) -> None:
        self._store = store
        self._tell = tell
        self._away: set[JobKey] = set()
        """Jobs that have been told that their run is not recorded now."""
        self._records: dict[JobKey, RunRecord] = {}
        """Newest record of a key, as it would be written."""
        self._fleets: dict[float, Fleet] = {}
        """By the time of the check that it is for."""
        self._written: dict[JobKey, RunRecord] = {}
        self._rows: dict[JobKey, tuple[float, tuple[ServerRow, ...]]] = {}
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

        Args:
            job: as observed.
            status: of its coordinator, if that answered.
            decision: of this look.
            events: our own.
            now: Unix seconds.
            every: seconds between two writes.
            settled: whether all workers and parameter servers that it states are at work.

        Returns:
            Whether the database holds all that matters of the run so far.
        """
        try:
            record = self._known(job)
        except errors.HistoryUnavailable as error:
            self._missed(job.key, error, now)
            return False
        except errors.InputError as error:
            LOG.warning("%s: its run cannot be recorded: %s", job.key, error)
            return True
        raised = (one.limit for one in manifest_memory.raised(job.manifest).values())
        record = recorder.advance(
            record,
            job,
            status,
            decision=decision,
            events=events,
            memory_raised=max(raised, default=0),
            memory_limit=manifest_memory.most(job.manifest),
            servers=_servers(job) if settled else None,
        )
        self._records[job.key] = record
        written = self._written.get(job.key)
        if written is not None and _same(written, record):
            return True
        ended = record.outcome != recorder.RUNNING
        if written is not None and not ended and now - written.updated_at < every:
            return True
        return self._write(job.key, recorder.at(record, now), now)

    def fleet(self, check: Preflight | None) -> Fleet:
        """What other checks of nodes showed, for one of a job; empty while it cannot be read."""
        if check is None:
            return Fleet()
        known = self._fleets.get(check.at)
        if known is not None:
            return known
        try:
            runs = self._store.list(limit=RUNS)
        except errors.HistoryUnavailable as error:
            LOG.warning("a check is judged without history: %s", error)
            return Fleet()
        others = (one for run in runs for one in run.preflights if one.at != check.at)
        found = self._fleets[check.at] = fleet.gather(others, check.at)
        while len(self._fleets) > FLEETS:
            del self._fleets[next(iter(self._fleets))]
        return found

    def law(self, job: ObservedJob, now: float) -> ServerModel | None:
        """Of a job's parameter servers, by its own run and those of the same command.

        None while they have shown one setup alone, or nothing of them is known.
        """
        own = self._records.get(job.key)
        try:
            own = own or self._known(job)
            rows = self._alike(job.key, own, now)
        except (errors.HistoryUnavailable, errors.InputError) as error:
            LOG.info("%s: runs alike tell nothing of its servers: %s", job.key, error)
            rows = ()
        if own is not None and own.uid == job.uid:
            if ps_model.changed_at(own.servers, own.windows):
                rows = ()  # what runs before it were like, it is not any more
            rows = (*rows, *ps_model.rows_of(own.servers, own.windows))
        return ps_model.fit(rows[-MOST_ROWS:])

    def _alike(self, key: JobKey, own: RunRecord, now: float) -> tuple[ServerRow, ...]:
        """Rows of other runs of its command, those of the newest run last."""
        until, rows = self._rows.get(key, (0.0, ()))
        if now < until:
            return rows
        command = own.signature.command
        found = [
            run
            for run in self._store.similar(own.signature)
            if run.uid != own.uid and run.signature.command == command
        ]
        found.sort(key=lambda run: run.updated_at)
        rows = tuple(row for run in found for row in ps_model.rows_of(run.servers, run.windows))[
            -MOST_ROWS:
        ]
        self._rows[key] = (now + ALIKE_SECONDS, rows)
        return rows

    def delete(self, key: JobKey, now: float) -> None:
        """Complete the records of a job that is no longer there."""
        newest = self._records.get(key)
        if newest is not None and newest.outcome == recorder.RUNNING:
            # What was seen since it was written last: the job went before the next time.
            self._write(key, recorder.at(newest, now), now)
        self.forget(key)
        self._close(key, "", now)

    def _known(self, job: ObservedJob) -> RunRecord:
        record = self._records.get(job.key)
        if record is not None and record.uid == job.uid:
            return record
        self._drop(job.key)
        found = self._store.get(job.uid)
        if found is not None:
            self._written[job.key] = found
            return found
        self._close(job.key, job.uid, job.created_at)
        return begun(job)

    def _close(self, key: JobKey, but_uid: str, now: float) -> None:
        """Runs of that name which are not there any more ended by being deleted."""
        try:
            open_runs = self._store.list(
                namespace=key.namespace, name=key.name, outcome=recorder.RUNNING
            )
            for record in open_runs:
                if record.signature.kind == key.kind and record.uid != but_uid:
                    self._store.upsert(recorder.deleted(record, now))
        except errors.HistoryUnavailable as error:
            LOG.warning("%s: its deletion is not recorded: %s", key, error)

    def _write(self, key: JobKey, record: RunRecord, now: float) -> bool:
        try:
            self._store.upsert(record)
        except errors.HistoryUnavailable as error:
            self._missed(key, error, now)
            return False
        self._written[key] = record
        self._away.discard(key)
        return True

    def _missed(self, key: JobKey, error: errors.HistoryUnavailable, now: float) -> None:
        """Say once for each time that it is away that the run goes on unrecorded."""
        LOG.warning("%s: its run is not recorded now: %s", key, error)
        if self._tell is None or key in self._away:
            return
        self._away.add(key)
        message = f"the run goes on and is not recorded now: {error}"
        event = Event(names.EVENT_HISTORY_UNAVAILABLE, message, warning=True, at=now)
        try:
            self._tell(key, event)
        except errors.ClusterUnavailable as refusal:
            LOG.warning("%s: that its run is not recorded could not be told: %s", key, refusal)

    def forget(self, key: JobKey) -> None:
        """Drop what is cached of the job."""
        self._drop(key)
        self._away.discard(key)

    def _drop(self, key: JobKey) -> None:
        self._records.pop(key, None)
        self._written.pop(key, None)
        self._rows.pop(key, None)


def _servers(job: ObservedJob) -> ServerSetup | None:
    try:
        return job_signature.servers(job.manifest)
    except errors.InputError as error:
        LOG.warning("%s: its parameter servers are not recorded: %s", job.key, error)
        return None


def _same(one: RunRecord, other: RunRecord) -> bool:
    return dataclasses.replace(one, updated_at=0.0) == dataclasses.replace(other, updated_at=0.0)
