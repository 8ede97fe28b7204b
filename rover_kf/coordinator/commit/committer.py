# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is durable: ranks' reports made into a manifest, and what storage then need not keep.

Its memory is a cache: what is committed stands on storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import PersistAborted, RankPersisted
from rover_kf.api.states import NO_ROUND, NO_STATE, RoundId, State
from rover_kf.api.status import Ack
from rover_kf.checkpoint import commit
from rover_kf.checkpoint.commit import Committed, Resumed
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.retention import KeepBest
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.coordinator.commit import storage_scan
from rover_kf.coordinator.commit.storage_scan import StorageScan
from rover_kf.sidecar.interfaces import EventRecorder
from rover_kf.sidecar.settings import SidecarSettings


class MissingMetricCheck:
    """One a coordinator.

    Args:
        best: what policy asks for; None: nothing.
        keep: newest checkpoints that stay: so many may lack the metric before one is removed.
    """

    def __init__(self, best: KeepBest | None, keep: int) -> None:
        self._best, self._keep = best, keep
        self._lacking = 0
        self._is_done = best is None
        """The metric was seen, or it was told that it is not."""

    def warning(self, step: int, metrics: Mapping[str, float]) -> str:
        """What to tell of a checkpoint that is committed; empty: nothing.

        A script that measures now and then has checkpoints without any metric: they say nothing.
        """
        if self._is_done or self._best is None or not metrics:
            return ""
        self._is_done = self._best.metric in metrics
        self._lacking += not self._is_done
        if self._is_done or self._lacking <= self._keep:
            return ""
        self._is_done = True
        return (
            f"checkpoint.keep-best is {self._best}, and step {step} has no {self._best.metric!r} "
            f"but {sorted(metrics)}: none counts as one of the best, and older ones are removed; "
            "name one of these there, or give that metric with the state"
        )


MIN_BYTES = 8 << 20
"""A smaller file tells of how long storage takes to answer, not of how many bytes it takes."""


_MAX_STEPS = 16
"""Steps; their median counts, so that one bad minute is not the storage."""


class StorageRate:
    """Of one job."""

    def __init__(self) -> None:
        self._slowest: dict[State, float] = {}

    @property
    def value(self) -> float:
        """Bytes a second; 0 as long as nothing of size was persisted."""
        found = sorted(self._slowest.values())
        return found[len(found) // 2] if found else 0.0

    def on_rank_durable(self, durable: RankPersisted) -> None:
        """A rank's file is on storage."""
        if durable.file_bytes < MIN_BYTES or durable.storage_seconds <= 0:
            return
        state, rate = durable.state, durable.file_bytes / durable.storage_seconds
        self._slowest[state] = min(rate, self._slowest.get(state, rate))
        while len(self._slowest) > _MAX_STEPS:
            del self._slowest[next(iter(self._slowest))]


_log = logging.getLogger(__name__)


_EVENT_SECONDS = 10.0


class Committer:
    """One a coordinator.

    Args:
        settings: of the sidecar that plays it.
        events: where commits and damages are told.
        storage: of the job; None: checkpoints stay in memory.
        on_committed: takes each state that is durable from now on.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        events: EventRecorder,
        storage: StoredCheckpoints | None,
        on_committed: Callable[[State], None],
    ) -> None:
        self._settings, self._events, self._storage = settings, events, storage
        self._on_committed = on_committed
        self._commit_log = commit.CommitLog()
        self._scanning: asyncio.Task[None] | None = None
        self._rate = StorageRate()
        self._metric_check = MissingMetricCheck(
            settings.retention_exceptions.best, settings.policy.checkpoint.keep
        )
        self._writing = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self._waiters = 0
        self._reported_at = float("-inf")
        self._mismatch = (NO_ROUND, "")
        """The round in which ranks' states did not go together, and how; told once."""
        self._mismatch_state: State | None = None
        """The newest one of which that was so."""
        self._resumed: Resumed | None = None
        self.generation = 0
        """Of this coordinator."""
        self.rejection = ""
        """Why this job may not use its storage; empty: it may, as far as is known."""
        self.has_scanned = False
        """Whether it knows what storage had when this coordinator began."""

    @property
    def committed(self) -> Committed | None:
        """The newest checkpoint on storage."""
        return self._commit_log.committed

    @property
    def rate(self) -> float:
        """Bytes a second that storage took of the slowest pod lately; 0: not measured."""
        return self._rate.value

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits for a step to be durable."""
        return self._waiters > 0

    @property
    def mismatch(self) -> str:
        """Why nothing of the running round comes to storage; empty: nothing is known to keep it."""
        return self._mismatch[1] if self._mismatch[0] == self._commit_log.round else ""

    def is_mismatched(self, state: State) -> bool:
        """Whether ranks' shares of that state do not go together: it never comes to storage."""
        return bool(self.mismatch) and state == self._mismatch_state

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Somebody waits for a state to be durable."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    def is_durable(self, state: State) -> bool:
        """Whether that state, or a newer one, is on storage."""
        committed, resumed = self.committed, self._resumed
        if committed is None:
            return False
        if resumed is not None and resumed.covers(state) and resumed.state <= committed.origin:
            return True
        return state <= committed.state

    def is_committed(self, state: State) -> bool:
        """Whether that very state, or a newer one, is: nothing can make it so once more."""
        return commit.is_committed(self._commit_log, state)

    def begin_round(self, current: RoundId) -> None:
        """A round starts: reports of older ones are stale from now on."""
        self._commit_log = commit.begin_round(self._commit_log, current)

    def resume_from(self, resumed: Resumed | None) -> None:
        """The round resumes from that state; what is newer on storage was damaged."""
        self._resumed, committed = resumed, self.committed
        if committed is not None and resumed is not None and resumed.state < committed.origin:
            self._commit_log = commit.forget_committed(self._commit_log)

    def on_scan(self, scan: StorageScan) -> None:
        """Take what storage has for committed, unless the round went back behind it."""
        self.has_scanned = self.has_scanned or not scan.error
        committed, resumed = scan.committed, self._resumed
        if committed is None or self.is_committed(committed.state):
            return
        # What the round itself has committed is newer than what it began with.
        if (
            resumed is None
            or committed.state.round >= resumed.round
            or committed.origin <= resumed.state
        ):
            self._commit_log = dataclasses.replace(self._commit_log, committed=committed)
            self._on_committed(committed.state)

    def rescan(self) -> None:
        """Where storage could not be read at first what is committed there is not known."""
        looks = self._scanning is not None and not self._scanning.done()
        if self._storage is not None and not self.has_scanned and not looks:
            self._scanning = asyncio.create_task(self._rescan(self._storage))

    async def _rescan(self, storage: StoredCheckpoints) -> None:
        self.on_scan(await storage_scan.scan(storage))
        if self.has_scanned:
            with contextlib.suppress(errors.StorageError):  # told of at the next commit
                await self.claim()

    async def claim(self) -> None:
        """Claim the job's folder, or check that the claim still holds.

        Raises:
            StorageError: the storage refused, or the folder is not this coordinator's.
        """
        if self._storage is None:
            return
        adopted = self._settings.policy.checkpoint.adopt_from or ""
        stated = Claim(self._settings.owner, self.generation, adopted)
        try:
            # Where names cannot be linked one would read owner.json while another writes it.
            async with self._claiming:
                await asyncio.to_thread(self._storage.claim, stated)
        except errors.NotOwner as error:
            self.rejection = str(error)
            raise

    async def on_rank_durable(self, durable: RankPersisted) -> Ack:
        """Take a rank's report; the manifest is written when it was the last one.

        Raises:
            StorageError: the manifest cannot be written.
        """
        if self._storage is None:
            return Ack(done=False, reason="this job has no checkpoint path")
        async with self._writing:
            owner = self._settings.owner
            verdict = commit.report(self._commit_log, durable, owner=owner, now=time.time())
            self._commit_log = verdict.log
            if verdict.accepted:
                self._rate.on_rank_durable(durable)
            if verdict.is_mismatch:
                self._record_mismatch(durable, verdict.reason)
            if verdict.manifest is not None:
                await self._commit(verdict.manifest, durable.persist_seconds, self._storage)
            return Ack(done=verdict.accepted, reason=verdict.reason)

    def _record_mismatch(self, durable: RankPersisted, reason: str) -> None:
        if durable.state.round > self._mismatch[0]:
            message = f"step {durable.state.step} does not come to storage: {reason}"
            self._mismatch, self._mismatch_state = (durable.state.round, message), None
            self._warn(message)
        self._mismatch_state = max(self._mismatch_state or durable.state, durable.state)

    async def on_abort(self, aborted: PersistAborted) -> None:
        """Storage has refused a state: it may be full of what ranks wrote of older ones."""
        if self._storage is None:
            return
        async with self._writing:
            self._commit_log = commit.record_abort(self._commit_log, aborted)
            if commit.all_ranks_done(self._commit_log, aborted):
                try:
                    await self.claim()
                    state = aborted.state
                    await self._collect(self._storage, state.round, below=state)
                except errors.StorageError as error:
                    _log.info("no room is made: %s", error)

    async def _commit(
        self, manifest: Manifest, persist_seconds: float, storage: StoredCheckpoints
    ) -> None:
        await self.claim()
        folder = await asyncio.to_thread(storage.write_manifest, manifest)
        self._commit_log = commit.commit(
            self._commit_log, Committed(manifest.state, manifest.origin)
        )
        size = sum(file.length for file in manifest.files)
        self._emit_durable(
            f"step {manifest.state.step} is durable in {folder.name}: {len(manifest.files)} "
            f"file(s), {size} bytes, written in {persist_seconds:.2f} s",
            now=time.monotonic(),
        )
        if wrong := self._metric_check.warning(manifest.state.step, manifest.metrics):
            self._warn(wrong)
        self._on_committed(manifest.state)
        try:
            await self._collect(storage, manifest.state.round)
        except errors.StorageError as error:
            self._warn(f"old checkpoints stay: {error}")

    async def _collect(
        self, storage: StoredCheckpoints, current: RoundId, *, below: State = NO_STATE
    ) -> None:
        keep, spare = self._settings.policy.checkpoint.keep, self._settings.retention_exceptions
        await asyncio.to_thread(storage.collect, keep, current=current, spare=spare, below=below)

    def _emit_durable(self, message: str, *, now: float) -> None:
        # A small state is durable many times a second: the story needs no more than now and then,
        # and the step that somebody waits for.
        if self.has_waiters or now - self._reported_at >= _EVENT_SECONDS:
            self._reported_at = now
            self._events.record(names.EVENT_DURABLE, message)

    def _warn(self, message: str) -> None:
        self._events.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)
