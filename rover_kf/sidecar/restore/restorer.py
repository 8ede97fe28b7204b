# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process starts from: the coordinator chooses the step, this brings its bytes.

Own memory, a peer's memory, or storage; as they are, or put together from several ranks' where the
world has another size or the file was split. Whatever the source, the result is a sealed, verified
slot of this pod. Slots with steps after the common one are cleared: they belong to a course that
the job has left, and a later choice must not mix the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    RejectedState,
    RestoreReply,
    RestoreRequest,
    RestoreStepReply,
    RestoreStepRequest,
    SlotInfo,
)
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.format.snapshot import STATE_KEY, Snapshot
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.interfaces import EventRecorder, PeerClient
from rover_kf.sidecar.restore.memory_sources import MemorySources
from rover_kf.sidecar.restore.slot_assembler import SlotAssembler, SourceState
from rover_kf.sidecar.restore.storage_reader import DamagedCheckpoint, StorageReader
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.sources import FileSource, SnapshotSource
from rover_kf.sidecar.slots.verifier import SlotVerifier

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_ATTEMPTS = 3


class Restorer:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        verifier: of this pod's slots.
        store: the job's folder; None: memory only.
        peers: the coordinator and other sidecars.
        events: where restores and damages are told.
        server: of this pod's slots to others.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        verifier: SlotVerifier,
        store: StoredCheckpoints | None,
        peers: PeerClient,
        events: EventRecorder,
        *,
        server: SlotServer,
    ) -> None:
        self._settings, self._storage = settings, store
        self._verifier, self._slots = verifier, verifier.slots
        self._peers, self._events = peers, events
        self._assembler = SlotAssembler(self._slots, server)
        self._memory_sources = MemorySources(settings, self._slots, peers)

    async def restore(
        self, request: RestoreRequest, on_progress: Callable[[], None] = lambda: None
    ) -> RestoreReply:
        """Answer a training process; waits until all ranks of its round have asked.

        Args:
            request: by the process.
            on_progress: called while ranks of the round read from storage, now and then.

        Raises:
            CheckpointError: ranks did not ask in time, or the state fits no such world.
            CorruptSnapshot: the bytes that came are not those promised.
            StorageError: the storage cannot be read.
            ClusterUnavailable: coordinator or peer cannot be reached.
        """
        local_rank = request.local_rank
        if request.round.number:
            await self._assign(request, request.round)
        await asyncio.to_thread(self._discard_rejected, request)
        choice = await self._choose(request)
        damaged: tuple[RejectedState, ...] = ()
        while True:
            if choice.state is None or not request.plain_data_only:
                await self._assign(request, choice.round)
            if choice.state is None:
                return RestoreReply(None, "none", round=choice.round)
            try:
                if request.plain_data_only:
                    return await self._retry(choice, functools.partial(self._peek, request))
                seal, source = await self._fetch_or_fall_back(request, choice, on_progress)
                break
            except DamagedCheckpoint as damage:
                damaged = (*damaged, damage.rejected)
            await asyncio.to_thread(self._discard, local_rank, {one.state for one in damaged})
            choice = await self._choose(request, damaged)
        # The folder for it may have been made only now.
        await self._assign(request, choice.round)
        await asyncio.to_thread(self._drop_other_history, local_rank, seal)
        found = await asyncio.to_thread(self._slots.checksum, local_rank, seal)
        self._events.record(
            names.EVENT_RESTORED,
            f"rank {request.rank} of {request.world_size} resumes at step {seal.state.step} "
            f"from {source} in round {choice.round}; CRC-32C {found:08x}",
        )
        path = self._slots.arena(local_rank).slot_path(seal.slot)
        return RestoreReply(seal.state, source, str(path), seal.length, found, round=choice.round)

    async def _choose(
        self, request: RestoreRequest, damaged: tuple[RejectedState, ...] = ()
    ) -> RestoreStepReply:
        """The coordinator's choice for this rank; waits for the other ranks."""
        holdings = await self._holdings(request.local_rank, peek=request.plain_data_only)
        return await self._peers.call_coordinator(
            names.PATH_COMMIT_RESOLVE,
            RestoreStepRequest(
                request.round,
                request.rank,
                request.world_size,
                holdings,
                tuple(one.state for one in request.rejected),
                request.life,
                damaged,
            ),
            RestoreStepReply,
        )

    async def _assign(self, request: RestoreRequest, current: RoundId) -> None:
        """What the local rank is from now on."""
        assignment = RankAssignment(request.rank, request.world_size, current)
        await asyncio.to_thread(self._slots.assignments.set, request.local_rank, assignment)

    async def _fetch_or_fall_back(
        self, request: RestoreRequest, choice: RestoreStepReply, on_progress: Callable[[], None]
    ) -> tuple[Seal, str]:
        """What was chosen, and where from; a pod that went meanwhile had left it on storage."""
        if choice.source == "storage" and self._storage is not None:
            reader = StorageReader(self._peers, request, choice, on_progress, self._warn)
            store = self._storage

            async def files() -> list[FileSource]:
                return (await self._files(request, choice, store, reader.add))[1]

            fetch = functools.partial(self._from_storage, request, choice, store, reader.add)
            return await reader.read(fetch, files), choice.source
        try:
            return await self._fetch(request, choice), choice.source
        except errors.ClusterUnavailable as gone:
            stored = await asyncio.to_thread(
                step_selection.same_step_on_storage, self._storage, choice
            )
            if stored is None:
                raise
            _log.warning("%s is read from storage: %s", choice.state, gone)
            return await self._fetch(request, stored), stored.source

    async def _fetch(self, request: RestoreRequest, choice: RestoreStepReply) -> Seal:
        if choice.source == "storage" and self._storage is not None:  # in place of memory
            return await self._from_storage(request, choice, self._storage)
        if choice.source in ("memory", "peer") and choice.slots:
            first = choice.slots[0]
            here = choice.source == "memory" and not first.replica
            sharded = any(one.sizes != one.shape for one in request.requested)
            # Saved whole, or by a world of one, which has all boxes of all tensors.
            whole = not first.pieces or first.world_size != request.world_size
            cut = sharded and whole
            if here and len(choice.slots) == 1 and not cut:
                return await asyncio.to_thread(self._verify_local, first)
            return await self._retry(choice, functools.partial(self._from_memory, request))
        raise self._unreachable(choice)

    async def _peek(self, request: RestoreRequest, choice: RestoreStepReply) -> RestoreReply:
        """The plain data of what would be brought; a slot might have to hold all ranks' parts."""
        with contextlib.ExitStack() as pins:
            sources: Sequence[SnapshotSource] = await self._memory_sources.open(choice, pins)
            if choice.source == "storage" and self._storage is not None:
                reader = StorageReader(self._peers, request, choice, lambda: None, self._warn)
                _, files = await self._files(request, choice, self._storage)
                return _plain_reply(choice, await reader.peek(files[0]))
            if not sources:
                raise self._unreachable(choice)
            return _plain_reply(choice, await sources[0].head())

    def _warn(self, message: str) -> None:
        self._events.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)

    def _unreachable(self, choice: RestoreStepReply) -> errors.CheckpointError:
        return errors.CheckpointError(
            f"the coordinator chose {choice.source!r}, which this pod cannot reach "
            f"({names.PREFIX}checkpoint.path is {self._settings.policy.checkpoint.path})"
        )

    async def _holdings(self, local_rank: int, *, peek: bool) -> tuple[SlotInfo, ...]:
        """What the rank's slots hold; the pod's first rank tells of replicas, too."""
        places: list[int | str] = [local_rank]
        if local_rank == 0:
            places.extend(await asyncio.to_thread(self._slots.replicas))
        found: list[SlotInfo] = []
        for place in places:
            verified = await self._verifier.pop_verified(place)
            holdings, damages = await asyncio.to_thread(self._slots.holdings, place, verified)
            found.extend(holdings)
            if peek and holdings:
                self._verifier.record(place, self._slots.arena(place).sealed()[0])
            for damage in damages:
                self._warn(damage)
        return tuple(found)

    def _verify_local(self, holding: SlotInfo) -> Seal:
        """The slot to be taken as it is; the newest one was verified when it was offered."""
        seal, arena = self._memory_sources.seal_of(holding), self._slots.arena(holding.path_segment)
        newest = arena.sealed()[0]
        if seal == newest:
            return seal
        try:
            self._slots.verify(holding.path_segment, seal)
        except errors.CorruptSnapshot as damage:
            arena.discard(seal)
            self._warn(str(damage))
            raise
        # The newer one is of the same state, of another rank or world: it stays, as a source.
        return arena.make_newest(seal) if seal.state == newest.state else seal

    async def _retry(
        self, choice: RestoreStepReply, fetch: Callable[[RestoreStepReply], Awaitable[_T]]
    ) -> _T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await fetch(choice)
            except (errors.ClusterUnavailable, errors.CorruptSnapshot) as error:  # noqa: PERF203 - a retry
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("fetching %s again: %s", choice.state, error)
                if choice.alternatives:
                    first, *others = *choice.alternatives, *choice.slots
                    choice = dataclasses.replace(choice, slots=(first,), alternatives=tuple(others))
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _from_memory(self, request: RestoreRequest, choice: RestoreStepReply) -> Seal:
        first = choice.slots[0]
        with contextlib.ExitStack() as pins:
            sources = await self._memory_sources.open(choice, pins)
            state = SourceState(first.state, first.replicated, first.pieces)
            same = first.world_size == request.world_size
            return await self._assembler.fill(
                request, sources, state, rebuilding=choice.replicas_in_use, same_world=same
            )

    async def _from_storage(
        self,
        request: RestoreRequest,
        choice: RestoreStepReply,
        store: StoredCheckpoints,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> Seal:
        found, sources = await self._files(request, choice, store, on_read)
        state = SourceState(found.origin, found.replicated, found.pieces)
        same = found.world_size == request.world_size
        return await self._assembler.fill(request, sources, state, same_world=same)

    async def _files(
        self,
        request: RestoreRequest,
        choice: RestoreStepReply,
        store: StoredCheckpoints,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> tuple[Manifest, list[FileSource]]:
        """The checkpoint and its files, this rank's first."""
        folder = self._folder(choice, store)
        found = await asyncio.to_thread(store.load, folder)
        own = request.rank % found.world_size
        ordered = sorted(found.files, key=lambda file: (file.rank != own, file.rank))
        return found, [FileSource(store, folder, file, on_read) for file in ordered]

    def _folder(self, choice: RestoreStepReply, store: StoredCheckpoints) -> CheckpointFolder:
        # By name below our own root: the volume may be mounted elsewhere in the coordinator's pod.
        named = manifest.parse_folder(choice.path.rstrip("/"))
        if named is None:
            raise errors.CheckpointError(f"{choice.path!r} is no checkpoint's folder")
        return store.folder(named.state)

    def _discard_rejected(self, request: RestoreRequest) -> None:
        """Slots with a state that the process could not take hold nothing that it ever could."""
        self._discard(request.local_rank, {one.state for one in request.rejected})
        for one in request.rejected[-1:]:  # those before were reported when it refused them
            why = f"step {one.state.step} cannot be restored, trying an older one: {one.reason}"
            self._warn(why)

    def _discard(self, local_rank: int, states: Collection[State]) -> None:
        arena = self._slots.arena(local_rank)
        for seal in arena.sealed():
            if seal.state in states:
                arena.discard(seal)

    def _drop_other_history(self, local_rank: int, chosen: Seal) -> None:
        arena = self._slots.arena(local_rank)
        for seal in arena.sealed():
            # What this was made of stays, and another rank's of the same state: who is that rank
            # now may still have to fetch it.
            same = seal.state == chosen.state
            source = same and not chosen.replicated and seal.sequence < chosen.sequence
            if seal.slot != chosen.slot and seal.state >= chosen.state and not source:
                arena.discard(seal)


def _plain_reply(choice: RestoreStepReply, head: Snapshot) -> RestoreReply:
    if STATE_KEY not in head.metadata:
        raise errors.CorruptSnapshot(f"{choice.state} has no state in it")
    plain_data = head.metadata[STATE_KEY]
    return RestoreReply(choice.state, choice.source, plain_data=plain_data, round=choice.round)
