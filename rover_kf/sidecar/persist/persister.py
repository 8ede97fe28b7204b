# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sealed slots to storage, in the background: the step that the coordinator names, and on flush.

Every rank writes its own file: what is its alone and its share of what all ranks hold. The slot is
pinned while it is read: training saves into the other. A storage that refuses costs a Warning event
and a pause; checkpoints in memory go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Collection, Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    PersistAborted,
    PersistOrder,
    PersistOrderRequest,
    PodEnded,
    RankPersisted,
    WaitRequest,
)
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.interfaces import EventRecorder, PeerClient
from rover_kf.sidecar.persist.job_storage import JobStorage
from rover_kf.sidecar.persist.order_pins import OrderPins
from rover_kf.sidecar.persist.rank_file import write_rank_file
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_FLUSH_SECONDS = 600.0
_STORAGE_RETRY_SECONDS = 1.0
"""Before a flush asks a storage again that has refused."""
_LONG_POLL_SECONDS = 10.0
_REPORT_SECONDS = 5.0
"""The coordinator may have ended, of a pod that has nothing to store."""


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far one local rank has come."""

    written: tuple[int, RankPersisted] | None = None
    """Sequence of the newest seal on storage, and the report of it."""
    warned_at: float = float("-inf")
    """Monotonic seconds of the last Warning: a flush that is asked for ever anew tells one."""


class Persister:
    """One a sidecar.

    Args:
        settings: of the sidecar; ``checkpoint_path`` is set.
        slots: this pod's.
        storage: the job's folder.
        peers: to report to the coordinator.
        events: where refusals are told.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        slots: PodSlots,
        storage: JobStorage,
        peers: PeerClient,
        events: EventRecorder,
    ) -> None:
        self._settings, self._slots, self._storage = settings, slots, storage
        self._peers, self._events = peers, events
        self._retry_seconds = max(_RETRY_SECONDS, settings.policy.checkpoint.persist_seconds)
        self._progress: dict[int, _Progress] = {}
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        """Persist what the coordinator names, for ever.

        While a slot is read a save may overwrite the only newer one, and die in it. What that rank
        falls back to, the others must have as well: no rank lets go of its slot before the step is
        on storage or given up, however early its own file is written.
        """
        named = PersistOrder(0, None)
        while True:
            ranks = await asyncio.to_thread(self._slots.local_ranks)
            with contextlib.closing(OrderPins(self._slots, ranks)) as pins:
                if not named.upcoming:
                    pins.pin(named.state)
                writing = self._persist_all(pins, named)
                _, named = await asyncio.gather(writing, self._wait_finished(named, pins))

    async def _persist_all(self, pins: OrderPins, named: PersistOrder) -> None:
        state = named.state
        if state is not None and named.upcoming:
            reason = await pins.wait_sealed(state)
            if reason:
                await self._report_abort(pins.local_ranks[0], state, reason, 0.0)
            state = pins.pinned
        if state is not None:
            for local_rank in pins.local_ranks:
                await self._persist_scheduled(local_rank, state)

    async def _wait_finished(self, named: PersistOrder, pins: OrderPins) -> PersistOrder:
        """Let go of the slots when the step is finished, written here or not; what is next."""
        named = await self._next_scheduled(named)
        while named.in_progress:
            named = await self._next_scheduled(named)
        pins.close()
        return named

    async def _next_scheduled(self, current: PersistOrder) -> PersistOrder:
        """What is named after that; no state: nothing is, and the one before is finished."""
        holding = current.state is not None or current.in_progress
        request = PersistOrderRequest(current.number, _LONG_POLL_SECONDS, holding)
        try:
            return await self._peers.call_coordinator(
                names.PATH_COMMIT_NAMED, request, PersistOrder
            )
        except errors.RoverError as error:
            _log.warning("the coordinator names nothing: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
            return PersistOrder(current.number, None)

    async def flush(self) -> Ack:
        """Make the newest sealed step of every local rank durable; says why if it could not.

        A storage that refuses is asked again until the time is over, or whoever asked hangs up.
        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        while True:
            held = await asyncio.to_thread(self._newest_seals)
            if bool(held) and await asyncio.to_thread(self._are_stored, held.values()):
                return Ack()
            await self._report_ended(held)
            if not held:
                return Ack(reason="nothing was saved")
            newest = max(
                self._slots.stored_as(local_rank, seal) for local_rank, seal in held.items()
            )
            for local_rank, seal in held.items():
                refused = await self._flush_rank(local_rank, seal, deadline)
                if refused:
                    return await self._durable_or_rejected(newest, refused)
            # A coordinator that has died meanwhile has forgotten the reports: tell them again.
            reply = await self.wait_durable(newest, _LONG_POLL_SECONDS)
            if reply.is_settled or time.monotonic() >= deadline:
                return reply

    async def _report_ended(self, held: Mapping[int, Seal]) -> None:
        """What is not in this pod's slots now is not waited for."""
        states = {str(rank): self._slots.stored_as(rank, seal) for rank, seal in held.items()}
        told = PodEnded(self._settings.pod, states)
        asked = self._peers.call_coordinator(names.PATH_COMMIT_LEFT, told, Ack)
        try:
            await asyncio.wait_for(asked, _REPORT_SECONDS)
        except (errors.RoverError, asyncio.TimeoutError) as error:
            _log.info("the coordinator does not know what this pod has: %r", error)

    def _newest_seals(self) -> dict[int, Seal]:
        """The newest seal of each local rank."""
        ranks = self._slots.local_ranks()
        held = {local_rank: self._slots.arena(local_rank).sealed()[:1] for local_rank in ranks}
        return {local_rank: seals[0] for local_rank, seals in held.items() if seals}

    def _are_stored(self, seals: Collection[Seal]) -> bool:
        """Whether a checkpoint is there that has these states or newer ones.

        The coordinator, which wrote it, may have ended since: of a whole job that is told to end,
        its pod may be the first one that has nothing left to do.
        """
        try:
            whole = self._storage.checkpoints.complete_folders()
            for folder in whole[-1:]:
                self._storage.checkpoints.ensure_durable(folder)
            newest = [self._storage.checkpoints.read_manifest(folder) for folder in whole[-1:]]
        except (errors.StorageError, errors.CorruptSnapshot):
            return False
        return any(
            found.owner == self._settings.owner and all(s.state <= found.origin for s in seals)
            for found in newest
        )

    async def _flush_rank(self, local_rank: int, seal: Seal, deadline: float) -> str:
        """Persist it, at the latest by then; why that was refused."""
        while True:
            try:
                return await self._persist(local_rank, seal)
            except (errors.RoverError, OSError) as error:
                self._warn(local_rank, error)
                refused, by_storage = str(error), isinstance(error, (errors.StorageError, OSError))
            if not by_storage or time.monotonic() >= deadline:
                return refused
            if (await self.wait_durable(self._slots.stored_as(local_rank, seal), 0.0)).done:
                return refused
            await asyncio.sleep(_STORAGE_RETRY_SECONDS)

    async def wait_durable(self, state: State, seconds: float) -> Ack:
        """Wait until the coordinator has committed the state or a newer one."""
        deadline = time.monotonic() + seconds
        while True:
            rest = min(max(deadline - time.monotonic(), 0.0), _LONG_POLL_SECONDS)
            try:
                reply = await self._peers.call_coordinator(
                    names.PATH_COMMIT_WAIT, WaitRequest(state, "durable", rest), Ack
                )
            except errors.RoverError as error:
                return Ack(done=False, reason=str(error))
            if reply.is_settled or time.monotonic() >= deadline:
                return reply

    async def _durable_or_rejected(self, state: State, reason: str) -> Ack:
        """A report that comes late is refused because its state is committed already."""
        reply = await self.wait_durable(state, 0.0)
        return reply if reply.is_settled else Ack(done=False, reason=reason)

    async def _persist_scheduled(self, local_rank: int, state: State) -> None:
        pause = 0.0
        known = self._slots.assignments.get(local_rank)
        # The newest first: both worlds' parts of one state may be here after a change of size.
        seals = self._slots.arena(local_rank).sealed()
        seal = next((s for s in seals if self._slots.stored_as(local_rank, s) == state), None)
        if seal is None:
            reason = f"newer ones replaced it: {', '.join(str(s.state) for s in seals)}"
        elif known is not None and known.round > state.round:
            reason = f"round {state.round} is over"
        else:
            try:
                reason = await self._persist(local_rank, seal)
            except (errors.RoverError, OSError) as error:
                reason, pause = str(error), self._retry_seconds
                self._warn(local_rank, error)
        if reason:
            await self._report_abort(local_rank, state, reason, pause)

    async def _report_abort(self, local_rank: int, state: State, reason: str, pause: float) -> None:
        known = self._slots.assignments.get(local_rank)
        rank, ranks = (known.rank, known.world_size) if known else (-1, 0)
        told = PersistAborted(self._settings.pod, rank, state, reason, pause, ranks)
        try:
            await self._peers.call_coordinator(names.PATH_COMMIT_GIVEN_UP, told, Ack)
        except errors.RoverError as error:
            _log.warning("the coordinator does not know that %s fails: %s", state, error)

    async def _persist(self, local_rank: int, seal: Seal) -> str:
        """Write the rank's file unless it is there, and report it; why it was refused."""
        # It goes on where whoever asked hangs up: who asks next takes what comes of it.
        durable = await asyncio.shield(self._write_exclusively(local_rank, seal))
        if durable is None:
            return f"{seal.state} was overwritten, or its round is over"
        reply = await self._peers.call_coordinator(names.PATH_COMMIT_DURABLE, durable, Ack)
        return "" if reply.done else reply.reason

    async def _write_exclusively(self, local_rank: int, seal: Seal) -> RankPersisted | None:
        async with self._busy:
            return await self._write(local_rank, seal)

    async def _write(self, local_rank: int, seal: Seal) -> RankPersisted | None:
        progress = self._progress.setdefault(local_rank, _Progress())
        known = self._slots.assignments.get(local_rank)
        assignment = known or RankAssignment(seal.rank, seal.world_size, seal.state.round)
        if progress.written is not None:
            sequence, durable = progress.written
            if (sequence, durable.state.round) == (seal.sequence, assignment.round):
                return durable
        begun = time.monotonic()
        try:
            durable = await asyncio.to_thread(
                write_rank_file, self._storage.writer, self._slots, local_rank, seal, assignment
            )
        except errors.CorruptSnapshot as error:
            self._report_corrupt(local_rank, seal, error)
            return None
        except errors.StorageError as error:
            if assignment == (self._slots.assignments.get(local_rank) or assignment):
                raise
            # Or the new round's retention has removed the old one's unfinished folder.
            _log.info("given up with round %s: %s", assignment.round, error)
            return None
        durable = dataclasses.replace(
            durable, pod=self._settings.pod, persist_seconds=time.monotonic() - begun
        )
        progress.written = seal.sequence, durable
        return durable

    def _report_corrupt(self, local_rank: int, seal: Seal, error: errors.CorruptSnapshot) -> None:
        """A slot that was overwritten is no news; one that still has its seal cannot be read."""
        try:
            self._slots.arena(local_rank).pin(seal).close()
        except errors.CorruptSnapshot:
            _log.info("not persisted: %s", error)
        else:
            self._warn(local_rank, error)

    def _warn(self, local_rank: int, error: Exception) -> None:
        if isinstance(error, errors.CheckpointExists):
            _log.info("not persisted: %s", error)
            return
        progress, now = self._progress.setdefault(local_rank, _Progress()), time.monotonic()
        if now - progress.warned_at < self._retry_seconds:
            return
        progress.warned_at = now
        self._events.record(
            names.EVENT_CHECKPOINT_WARNING,
            f"local rank {local_rank}: {error}; checkpoints in memory go on, next attempt in "
            f"{self._retry_seconds:g} s",
            warning=True,
        )
