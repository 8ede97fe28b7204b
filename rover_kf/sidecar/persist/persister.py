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
from collections.abc import Collection, Mapping, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import Durable, GivenUp, Left, Named, NamedRequest, WaitRequest
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.interfaces import Peers, Story
from rover_kf.sidecar.persist.job_storage import Place
from rover_kf.sidecar.persist.rank_file import write
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import Assignment
from rover_kf.sidecar.slots.slots import Slots

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_FLUSH_SECONDS = 600.0
_REFUSED_SECONDS = 1.0
"""Before a flush asks a storage again that has refused."""
_LONG_POLL_SECONDS = 10.0
_TELL_SECONDS = 5.0
"""The coordinator may have ended, of a pod that has nothing to store."""


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far one local rank has come."""

    written: tuple[int, Durable] | None = None
    """Sequence of the newest seal on storage, and the report of it."""
    told_at: float = float("-inf")
    """Monotonic seconds of the last Warning: a flush that is asked for ever anew tells one."""


class Persister:
    """One a sidecar.

    Args:
        settings: of the sidecar; ``checkpoint_path`` is set.
        slots: this pod's.
        place: the job's folder.
        peers: to report to the coordinator.
        story: where refusals are told.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        slots: Slots,
        place: Place,
        peers: Peers,
        story: Story,
    ) -> None:
        self._settings, self._slots, self._place = settings, slots, place
        self._peers, self._story = peers, story
        self._progress: dict[int, _Progress] = {}
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        """Persist what the coordinator names, for ever.

        While a slot is read a save may overwrite the only newer one, and die in it. What that rank
        falls back to, the others must have as well: no rank lets go of its slot before the step is
        on storage or given up, however early its own file is written.
        """
        named = Named(0, None)
        while True:
            with contextlib.ExitStack() as pins:
                ranks = await asyncio.to_thread(self._slots.local_ranks)
                if not all(self._keep(pins, rank, named.step) for rank in ranks):
                    pins.close()  # It cannot become whole.
                writing = self._persist_all(ranks, named)
                _, named = await asyncio.gather(writing, self._finished(named, pins))

    async def _persist_all(self, ranks: Sequence[int], named: Named) -> None:
        if named.step is not None:
            for local_rank in ranks:
                await self._persist_named(local_rank, named.step, named.round)

    async def _finished(self, named: Named, pins: contextlib.ExitStack) -> Named:
        """Let go of the slots when the step is finished, written here or not; what is next."""
        named = await self._next(named)
        while named.under_way:
            named = await self._next(named)
        pins.close()
        return named

    async def _next(self, known: Named) -> Named:
        """What is named after that; no step: nothing is, and the one before is finished."""
        holding = known.step is not None or known.under_way
        request = NamedRequest(known.number, _LONG_POLL_SECONDS, holding)
        try:
            return await self._peers.ask_coordinator(names.PATH_COMMIT_NAMED, request, Named)
        except errors.RoverError as error:
            _log.warning("the coordinator names nothing: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
            return Named(known.number, None)

    def _keep(self, pins: contextlib.ExitStack, local_rank: int, step: int | None) -> bool:
        arena = self._slots.arena(local_rank)
        for seal in arena.sealed():
            if seal.step == step:
                try:
                    pins.enter_context(arena.pin(seal))
                except errors.TornSnapshot:
                    return False
                return True
        return False

    async def flush(self) -> Acknowledged:
        """Make the newest sealed step of every local rank durable; says why if it could not.

        A storage that refuses is asked again until the time is over, or whoever asked hangs up.
        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        while True:
            held = await asyncio.to_thread(self._newest)
            if bool(held) and await asyncio.to_thread(self._are_stored, held.values()):
                return Acknowledged()
            await self._tell_left(held)
            if not held:
                return Acknowledged(reason="nothing was saved")
            newest = max(seal.step for seal in held.values())
            for local_rank, seal in held.items():
                refused = await self._flushed(local_rank, seal, deadline)
                if refused:
                    return await self._is_durable_anyway(newest, refused)
            # A coordinator that has died meanwhile has forgotten the reports: tell them again.
            reply = await self.wait_durable(newest, _LONG_POLL_SECONDS)
            if reply.is_settled or time.monotonic() >= deadline:
                return reply

    async def _tell_left(self, held: Mapping[int, Seal]) -> None:
        """What is not in this pod's slots now is not waited for."""
        steps = {str(local_rank): seal.step for local_rank, seal in held.items()}
        told = Left(self._settings.pod, steps)
        asked = self._peers.ask_coordinator(names.PATH_COMMIT_LEFT, told, Acknowledged)
        try:
            await asyncio.wait_for(asked, _TELL_SECONDS)
        except (errors.RoverError, asyncio.TimeoutError) as error:
            _log.info("the coordinator does not know what this pod has: %r", error)

    def _newest(self) -> dict[int, Seal]:
        """The newest seal of each local rank."""
        ranks = self._slots.local_ranks()
        held = {local_rank: self._slots.arena(local_rank).sealed()[:1] for local_rank in ranks}
        return {local_rank: seals[0] for local_rank, seals in held.items() if seals}

    def _are_stored(self, seals: Collection[Seal]) -> bool:
        """Whether a checkpoint is there that has these steps or newer ones.

        The coordinator, which wrote it, may have ended since: of a whole job that is told to end,
        its pod may be the first one that has nothing left to do.
        """
        try:
            whole = self._place.stored.whole()
            for folder in whole[-1:]:
                self._place.stored.settle(folder)
        except errors.StorageFailed:
            return False
        there = {(folder.step, folder.generation) for folder in whole}
        return all(
            any(step >= seal.step and made >= seal.round for step, made in there) for seal in seals
        )

    async def _flushed(self, local_rank: int, seal: Seal, deadline: float) -> str:
        """Persist it, at the latest by then; why that was refused."""
        while True:
            try:
                return await self._persist(local_rank, seal)
            except (errors.RoverError, OSError) as error:
                self._warn(local_rank, error)
                refused, by_storage = str(error), isinstance(error, (errors.StorageFailed, OSError))
            if not by_storage or time.monotonic() >= deadline:
                return refused
            if (await self.wait_durable(seal.step, 0.0)).done:
                return refused
            await asyncio.sleep(_REFUSED_SECONDS)

    async def wait_durable(self, step: int, seconds: float) -> Acknowledged:
        """Wait until the coordinator has committed the step or a newer one."""
        deadline = time.monotonic() + seconds
        while True:
            rest = min(max(deadline - time.monotonic(), 0.0), _LONG_POLL_SECONDS)
            try:
                reply = await self._peers.ask_coordinator(
                    names.PATH_COMMIT_WAIT, WaitRequest(step, "durable", rest), Acknowledged
                )
            except errors.RoverError as error:
                return Acknowledged(done=False, reason=str(error))
            if reply.is_settled or time.monotonic() >= deadline:
                return reply

    async def _is_durable_anyway(self, step: int, refused: str) -> Acknowledged:
        """A report that comes late is refused because its step is committed already."""
        reply = await self.wait_durable(step, 0.0)
        return reply if reply.is_settled else Acknowledged(done=False, reason=refused)

    async def _persist_named(self, local_rank: int, step: int, round_: int) -> None:
        pause = 0.0
        known = self._slots.assignments.get(local_rank)
        seals = self._slots.arena(local_rank).sealed()
        seal = next((seal for seal in seals if seal.step == step), None)
        if seal is None:
            reason = f"newer steps replaced it: {[seal.step for seal in seals]}"
        elif known is not None and known.round > round_:
            reason = f"round {round_} is over"
        else:
            try:
                reason = await self._persist(local_rank, seal)
            except (errors.RoverError, OSError) as error:
                reason, pause = str(error), max(_RETRY_SECONDS, self._settings.persist_seconds)
                self._warn(local_rank, error)
        if reason:
            await self._give_up(local_rank, step, round_, reason, pause)

    async def _give_up(
        self, local_rank: int, step: int, round_: int, reason: str, pause: float
    ) -> None:
        known = self._slots.assignments.get(local_rank)
        rank, ranks = (known.rank, known.world_size) if known else (-1, 0)
        told = GivenUp(self._settings.pod, rank, round_, step, reason, pause, ranks)
        try:
            await self._peers.ask_coordinator(names.PATH_COMMIT_GIVEN_UP, told, Acknowledged)
        except errors.RoverError as error:
            _log.warning("the coordinator does not know that step %d fails: %s", step, error)

    async def _persist(self, local_rank: int, seal: Seal) -> str:
        """Write the rank's file unless it is there, and report it; why it was refused."""
        # It goes on where whoever asked hangs up: who asks next takes what comes of it.
        durable = await asyncio.shield(self._alone(local_rank, seal))
        if durable is None:
            return f"step {seal.step} was overwritten, or its round is over"
        reply = await self._peers.ask_coordinator(names.PATH_COMMIT_DURABLE, durable, Acknowledged)
        return "" if reply.done else reply.reason

    async def _alone(self, local_rank: int, seal: Seal) -> Durable | None:
        async with self._busy:
            return await self._durable(local_rank, seal)

    async def _durable(self, local_rank: int, seal: Seal) -> Durable | None:
        progress = self._progress.setdefault(local_rank, _Progress())
        known = self._slots.assignments.get(local_rank)
        assignment = known or Assignment(seal.rank, seal.world_size, seal.round)
        if progress.written is not None:
            sequence, durable = progress.written
            if (sequence, durable.round) == (seal.sequence, assignment.round):
                return durable
        begun = time.monotonic()
        try:
            durable = await asyncio.to_thread(
                write, self._place.writer, self._slots, local_rank, seal, assignment
            )
        except errors.TornSnapshot as error:
            self._tell_torn(local_rank, seal, error)
            return None
        except errors.StorageFailed as error:
            if assignment == (self._slots.assignments.get(local_rank) or assignment):
                raise
            # Or the new round's retention has removed the old one's unfinished folder.
            _log.info("given up with round %d: %s", assignment.round, error)
            return None
        durable = dataclasses.replace(
            durable, pod=self._settings.pod, persist_seconds=time.monotonic() - begun
        )
        progress.written = seal.sequence, durable
        return durable

    def _tell_torn(self, local_rank: int, seal: Seal, error: errors.TornSnapshot) -> None:
        """A slot that was overwritten is no news; one that still has its seal cannot be read."""
        try:
            self._slots.arena(local_rank).pin(seal).close()
        except errors.TornSnapshot:
            _log.info("not persisted: %s", error)
        else:
            self._warn(local_rank, error)

    def _warn(self, local_rank: int, error: Exception) -> None:
        if isinstance(error, errors.AlreadyStored):
            _log.info("not persisted: %s", error)
            return
        pause = max(_RETRY_SECONDS, self._settings.persist_seconds)
        progress, now = self._progress.setdefault(local_rank, _Progress()), time.monotonic()
        if now - progress.told_at < pause:
            return
        progress.told_at = now
        self._story.record(
            names.EVENT_CHECKPOINT_WARNING,
            f"local rank {local_rank}: {error}; checkpoints in memory go on, next attempt in "
            f"{pause:g} s",
            warning=True,
        )
