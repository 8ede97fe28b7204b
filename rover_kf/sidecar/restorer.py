# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process starts from: the coordinator chooses the step, this brings its bytes.

Own memory, a peer's memory, parities, or storage; as they are, or put together from several ranks'
where the world has another size or the file was split. Whatever the source, the result is a sealed,
verified slot of this pod. Slots with steps after the common one are cleared: they belong to a
course that the job has left, and a later choice must not mix the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import mmap
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaRequest,
    Holding,
    Parity,
    ResolveReply,
    ResolveRequest,
    RestoreReply,
    RestoreRequest,
)
from rover_kf.checkpoint import assembly, manifest
from rover_kf.checkpoint.arena import Filling
from rover_kf.checkpoint.assembly import Assembly
from rover_kf.checkpoint.control import Seal
from rover_kf.checkpoint.manifest import Folder
from rover_kf.checkpoint.storage import StoredCheckpoints
from rover_kf.sidecar import parity_slot
from rover_kf.sidecar.assignments import Assignment
from rover_kf.sidecar.examination import Examination
from rover_kf.sidecar.memory_sources import MemorySources
from rover_kf.sidecar.seams import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slot_server import SlotServer
from rover_kf.sidecar.sources import FileSource, Source, copy_into, move
from rover_kf.sidecar.together import handed

_log = logging.getLogger(__name__)

_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """Which state a slot is filled with."""

    step: int
    round: int
    """In which it came to be."""
    replicated: bool
    pieces: bool


class Restorer:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        examination: of this pod's slots.
        store: the job's folder; None: memory only.
        peers: the coordinator and other sidecars.
        story: where restores and damages are told.
        server: of this pod's slots to others.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        examination: Examination,
        store: StoredCheckpoints | None,
        peers: Peers,
        story: Story,
        *,
        server: SlotServer,
    ) -> None:
        self._settings, self._storage = settings, store
        self._examination, self._slots = examination, examination.slots
        self._server, self._peers, self._story = server, peers, story
        self._memory = MemorySources(settings, self._slots, peers)

    async def restore(self, request: RestoreRequest) -> RestoreReply:
        """Answer a training process; waits until all ranks of its round have asked.

        Raises:
            CheckpointError: ranks did not ask in time, or the state fits no such world.
            TornSnapshot: the bytes that came are not those promised.
            StorageFailed: the storage cannot be read.
            ClusterUnavailable: coordinator or peer cannot be reached.
        """
        local_rank = request.local_rank
        assignment = Assignment(request.rank, request.world_size, request.round)
        await asyncio.to_thread(self._slots.assignments.set, local_rank, assignment)
        await asyncio.to_thread(self._let_go, request)
        holdings = await self._holdings(local_rank)
        parities = await asyncio.to_thread(self._parities, local_rank)
        choice = await self._peers.ask_coordinator(
            names.PATH_COMMIT_RESOLVE,
            ResolveRequest(
                request.round,
                request.rank,
                request.world_size,
                holdings,
                parities,
                tuple(one.step for one in request.refused),
            ),
            ResolveReply,
        )
        if choice.step is None:
            return RestoreReply(None, "none")
        seal = await self._bring(request, choice)
        # The folder for it may have been made only now.
        await asyncio.to_thread(self._slots.assignments.set, local_rank, assignment)
        await asyncio.to_thread(self._leave_course, local_rank, seal)
        found = await asyncio.to_thread(self._slots.checksum, local_rank, seal)
        self._story.record(
            names.EVENT_RESTORED,
            f"rank {request.rank} of {request.world_size} resumes at step {seal.step} "
            f"from {choice.source} in round {request.round}; CRC-32C {found:08x}",
        )
        path = self._slots.arena(local_rank).slot_path(seal.slot)
        return RestoreReply(seal.step, choice.source, str(path), seal.length, found)

    async def _bring(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        if choice.source == "storage" and self._storage is not None:
            return await self._from_storage(request, choice, self._storage)
        if choice.source in ("memory", "peer", "parity") and choice.holdings:
            first = choice.holdings[0]
            here = choice.source == "memory" and not first.replica
            sharded = any(one.sizes != one.shape for one in request.wanted)
            # Saved whole, or by a world of one, which has all boxes of all tensors.
            whole = not first.pieces or first.world_size != request.world_size
            cut = sharded and whole
            if here and len(choice.holdings) == 1 and not cut:
                return await asyncio.to_thread(self._own_verified, first)
            return await self._again(request, choice)
        raise errors.CheckpointError(
            f"the coordinator chose {choice.source!r}, which this pod cannot reach "
            f"({names.PREFIX}checkpoint.path is {self._settings.checkpoint_path})"
        )

    async def _holdings(self, local_rank: int) -> tuple[Holding, ...]:
        """What the rank's slots hold; the pod's first rank tells of replicas, too."""
        places: list[int | str] = [local_rank]
        if local_rank == 0:
            places.extend(await asyncio.to_thread(self._slots.replicas))
        found: list[Holding] = []
        for place in places:
            verified = await self._examination.take(place)
            holdings, damages = await asyncio.to_thread(self._slots.holdings, place, verified)
            found.extend(holdings)
            for damage in damages:
                self._story.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        return tuple(found)

    def _parities(self, local_rank: int) -> tuple[Parity, ...]:
        """The pod's parities, which its first rank tells of."""
        found, damages = parity_slot.found(self._slots) if local_rank == 0 else ((), ())
        for damage in damages:
            self._story.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        return found

    def _own_verified(self, holding: Holding) -> Seal:
        """The slot to be taken as it is; the newest one was verified when it was offered."""
        seal, arena = self._memory.seal_of(holding), self._slots.arena(holding.place)
        newest = arena.sealed()[0]
        if seal == newest:
            return seal
        try:
            self._slots.verify(holding.place, seal)
        except errors.TornSnapshot as damage:
            arena.discard(seal)
            self._story.record(names.EVENT_CHECKPOINT_WARNING, str(damage), warning=True)
            raise
        # The newer one is of the same state, of another rank or world: it stays, as a source.
        alike = (seal.step, seal.round) == (newest.step, newest.round)
        return arena.renew(seal) if alike else seal

    async def _again(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._from_memory(request, choice)
            except (errors.ClusterUnavailable, errors.TornSnapshot) as error:  # noqa: PERF203 - a retry
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("fetching step %s again: %s", choice.step, error)
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _from_memory(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        first = choice.holdings[0]
        with contextlib.ExitStack() as pins:
            sources = await self._memory.open(choice, pins)
            made = await self._made(sources, request)
            state = _State(
                first.step, first.round, replicated=first.replicated, pieces=first.pieces
            )
            return await self._fill(request, sources, made, state, rebuilding=choice.rebuilding)

    async def _from_storage(
        self, request: RestoreRequest, choice: ResolveReply, store: StoredCheckpoints
    ) -> Seal:
        folder = self._folder(choice, store)
        found = await asyncio.to_thread(store.load, folder)
        own = request.rank % found.world_size
        ordered = sorted(found.files, key=lambda file: (file.rank != own, file.rank))
        sources = [FileSource(store, folder, file) for file in ordered]
        made = await self._made(sources, request)
        state = _State(
            found.step, found.generation, replicated=found.replicated, pieces=found.pieces
        )
        return await self._fill(request, sources, made, state)

    async def _made(self, sources: Sequence[Source], request: RestoreRequest) -> Assembly | None:
        """How the snapshot is put together; None: the one source is taken as it is."""
        if len(sources) == 1 and not request.wanted:
            return None
        heads = [await source.head() for source in sources]
        return await asyncio.to_thread(assembly.plan, heads, 0, request.wanted)

    async def _fill(
        self,
        request: RestoreRequest,
        sources: Sequence[Source],
        made: Assembly | None,
        state: _State,
        *,
        rebuilding: bool = False,
    ) -> Seal:
        length = made.length if made else sources[0].length
        in_pieces = state.pieces or (made is not None and made.in_pieces)
        wanted = ArenaRequest(request.local_rank, length)
        await asyncio.to_thread(self._slots.allocate, wanted, rebuilding=rebuilding)
        arena = self._slots.arena(request.local_rank)
        self._server.end_others(request.local_rank, state.step, state.round)
        with await handed(arena.fill, Filling.close) as filling:
            if made is None:
                await copy_into(sources[0], filling.descriptor)
            else:
                await _assemble(made, sources, filling.descriptor)
            seal = filling.seal(
                step=state.step,
                length=length,
                rank=request.rank,
                world_size=request.world_size,
                round_=state.round,
                replicated=state.replicated and not in_pieces,
                pieces=in_pieces,
            )
        if made is None:
            arena.control.write_checksum(seal, sources[0].checksum)
        return seal

    def _folder(self, choice: ResolveReply, store: StoredCheckpoints) -> Folder:
        # By name below our own root: the volume may be mounted elsewhere in the coordinator's pod.
        named = manifest.parse_folder(choice.path.rstrip("/"))
        if named is None:
            raise errors.CheckpointError(f"{choice.path!r} is no checkpoint's folder")
        return store.folder(named.step, named.generation)

    def _let_go(self, request: RestoreRequest) -> None:
        """Slots with a step that the process could not take hold nothing that it ever could."""
        arena = self._slots.arena(request.local_rank)
        refused = {one.step for one in request.refused}
        for seal in arena.sealed():
            if seal.step in refused:
                arena.discard(seal)
        for one in request.refused[-1:]:  # those before were told when it refused them
            told = f"step {one.step} cannot be restored, trying an older one: {one.reason}"
            self._story.record(names.EVENT_CHECKPOINT_WARNING, told, warning=True)

    def _leave_course(self, local_rank: int, chosen: Seal) -> None:
        arena = self._slots.arena(local_rank)
        for seal in arena.sealed():
            # What this was made of stays, and another rank's of the same state: who is that rank
            # now may still have to fetch it.
            same = (seal.step, seal.round) == (chosen.step, chosen.round) and not chosen.replicated
            source = same and seal.sequence < chosen.sequence
            if seal.slot != chosen.slot and seal.step >= chosen.step and not source:
                arena.discard(seal)


async def _assemble(made: Assembly, sources: Sequence[Source], descriptor: int) -> None:
    with mmap.mmap(descriptor, made.length) as mapping, memoryview(mapping) as target:
        target[: len(made.header)] = made.header
        for source, copies in zip(sources, made.copies, strict=True):
            if copies:
                await move(source, copies, target)
