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
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    Holding,
    ResolveReply,
    ResolveRequest,
    RestoreReply,
    RestoreRequest,
)
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import Folder, Manifest
from rover_kf.checkpoint.format.snapshot import STATE_KEY, Snapshot
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.interfaces import Peers, Story
from rover_kf.sidecar.restore.memory_sources import MemorySources
from rover_kf.sidecar.restore.shared_slot import Lead, Leads
from rover_kf.sidecar.restore.slot_assembler import SlotFiller, State
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import Assignment
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.sources import FileSource, SlotSource, Source
from rover_kf.sidecar.slots.verifier import Examination

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_ATTEMPTS = 3


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
        self._peers, self._story = peers, story
        self._filler, self._leads = SlotFiller(self._slots, server), Leads(self._slots)
        self._memory = MemorySources(settings, self._slots, peers)

    async def restore(self, request: RestoreRequest) -> RestoreReply:
        """Answer a training process; waits until all ranks of its round have asked.

        Raises:
            CheckpointError: ranks did not ask in time, or the state fits no such world.
            TornSnapshot: the bytes that came are not those promised.
            StorageFailed: the storage cannot be read.
            ClusterUnavailable: coordinator or peer cannot be reached.
        """
        if request.local_rank:
            return await self._restore(request)
        with self._leads.asked(request):
            return await self._restore(request)

    async def _restore(self, request: RestoreRequest) -> RestoreReply:
        local_rank = request.local_rank
        assignment = Assignment(request.rank, request.world_size, request.round)
        await asyncio.to_thread(self._slots.assignments.set, local_rank, assignment)
        await asyncio.to_thread(self._let_go, request)
        holdings = await self._holdings(local_rank, look=request.look)
        choice = await self._peers.ask_coordinator(
            names.PATH_COMMIT_RESOLVE,
            ResolveRequest(
                request.round,
                request.rank,
                request.world_size,
                holdings,
                tuple(one.step for one in request.refused),
            ),
            ResolveReply,
        )
        if choice.step is None:
            return RestoreReply(None, "none")
        if request.look:
            return await self._again(choice, functools.partial(self._look, request))
        lead = None if request.ranks else await self._leads.find(request, choice)
        if lead:
            seal, source = await self._beside(request, choice, lead), lead.source
        else:
            seal, source = await self._brought(request, choice)
        # The folder for it may have been made only now.
        await asyncio.to_thread(self._slots.assignments.set, local_rank, assignment)
        await asyncio.to_thread(self._leave_course, local_rank, seal)
        found = await asyncio.to_thread(self._slots.checksum, local_rank, seal)
        self._story.record(
            names.EVENT_RESTORED,
            f"rank {request.rank} of {request.world_size} resumes at step {seal.step} "
            f"from {source} in round {request.round}; CRC-32C {found:08x}",
        )
        path = self._slots.arena(local_rank).slot_path(seal.slot)
        reply = RestoreReply(seal.step, source, str(path), seal.length, found)
        if lead is not None:
            beside = str(self._slots.arena(0).slot_path(lead.seal.slot))
            return dataclasses.replace(reply, lead=beside, lead_bytes=lead.seal.length)
        if not local_rank:
            self._leads.tell(request, reply, seal)
        return reply

    async def _brought(self, request: RestoreRequest, choice: ResolveReply) -> tuple[Seal, str]:
        """What was chosen, and where from; a pod that went meanwhile had left it on storage."""
        try:
            return await self._bring(request, choice), choice.source
        except errors.ClusterUnavailable as gone:
            stored = await asyncio.to_thread(step_selection.same, self._storage, choice)
            if stored is None:
                raise
            _log.warning("step %s is read from storage: %s", choice.step, gone)
            return await self._bring(request, stored), stored.source

    async def _bring(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        if choice.source == "storage" and self._storage is not None:
            return await self._from_storage(request, choice, self._storage)
        if choice.source in ("memory", "peer") and choice.holdings:
            first = choice.holdings[0]
            here = choice.source == "memory" and not first.replica
            sharded = any(one.sizes != one.shape for one in request.wanted)
            # Saved whole, or by a world of one, which has all boxes of all tensors.
            whole = not first.pieces or first.world_size != request.world_size
            cut = sharded and whole
            alike = first.ranks == request.ranks
            if here and len(choice.holdings) == 1 and not cut and alike:
                return await asyncio.to_thread(self._own_verified, first)
            return await self._again(choice, functools.partial(self._from_memory, request))
        raise self._unreachable(choice)

    async def _look(self, request: RestoreRequest, choice: ResolveReply) -> RestoreReply:
        """The plain data of what would be brought; a slot might have to hold all ranks' parts."""
        arena = self._slots.arena(request.local_rank)
        for seal in arena.of_state(*step_selection.state_of(choice)):
            if not seal.ranks:
                with arena.pin(seal) as pin:
                    return _plain(choice, await SlotSource(pin, 0).head())
        with contextlib.ExitStack() as pins:
            sources: Sequence[Source] = await self._memory.open(choice, pins)
            if choice.source == "storage" and self._storage is not None:
                _, sources = await self._files(request, choice, self._storage)
            if not sources:
                raise self._unreachable(choice)
            return _plain(choice, await sources[0].head())

    def _unreachable(self, choice: ResolveReply) -> errors.CheckpointError:
        return errors.CheckpointError(
            f"the coordinator chose {choice.source!r}, which this pod cannot reach "
            f"({names.PREFIX}checkpoint.path is {self._settings.checkpoint_path})"
        )

    async def _holdings(self, local_rank: int, *, look: bool) -> tuple[Holding, ...]:
        """What the rank's slots hold; the pod's first rank tells of replicas, too."""
        places: list[int | str] = [local_rank]
        if local_rank == 0:
            places.extend(await asyncio.to_thread(self._slots.replicas))
        found: list[Holding] = []
        for place in places:
            verified = await self._examination.take(place)
            holdings, damages = await asyncio.to_thread(self._slots.holdings, place, verified)
            found.extend(holdings)
            if look and holdings:
                self._examination.keep(place, self._slots.arena(place).sealed()[0])
            for damage in damages:
                self._story.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        return tuple(found)

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

    async def _again(
        self, choice: ResolveReply, bring: Callable[[ResolveReply], Awaitable[_T]]
    ) -> _T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await bring(choice)
            except (errors.ClusterUnavailable, errors.TornSnapshot) as error:  # noqa: PERF203 - a retry
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("fetching step %s again: %s", choice.step, error)
                if choice.others:
                    first, *others = *choice.others, *choice.holdings
                    choice = dataclasses.replace(choice, holdings=(first,), others=tuple(others))
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _from_memory(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        first = choice.holdings[0]
        with contextlib.ExitStack() as pins:
            sources = await self._memory.open(choice, pins)
            state = State(first.step, first.round, first.replicated, first.pieces, first.ranks)
            same = first.world_size == request.world_size
            return await self._filler.fill(
                request, sources, state, rebuilding=choice.rebuilding, same_world=same
            )

    async def _from_storage(
        self, request: RestoreRequest, choice: ResolveReply, store: StoredCheckpoints
    ) -> Seal:
        found, sources = await self._files(request, choice, store)
        state = State(found.step, found.generation, found.replicated, found.pieces)
        same = found.world_size == request.world_size
        return await self._filler.fill(request, sources, state, same_world=same)

    async def _files(
        self, request: RestoreRequest, choice: ResolveReply, store: StoredCheckpoints
    ) -> tuple[Manifest, list[FileSource]]:
        """The checkpoint and its files, this rank's first."""
        folder = self._folder(choice, store)
        found = await asyncio.to_thread(store.load, folder)
        own = request.rank % found.world_size
        ordered = sorted(found.files, key=lambda file: (file.rank != own, file.rank))
        return found, [FileSource(store, folder, file) for file in ordered]

    async def _beside(self, request: RestoreRequest, choice: ResolveReply, lead: Lead) -> Seal:
        """A light slot, with what is the rank's own, of the state that the first rank has."""
        arena, first = self._slots.arena(request.local_rank), lead.seal
        for seal in arena.of_state(first.step, first.round):
            if not seal.ranks:
                try:
                    await asyncio.to_thread(self._slots.verify, request.local_rank, seal)
                except errors.TornSnapshot as damage:
                    arena.discard(seal)
                    self._story.record(names.EVENT_CHECKPOINT_WARNING, str(damage), warning=True)
                else:
                    return seal
        if choice.source == "storage" and self._storage is not None:
            return await self._from_storage(request, choice, self._storage)
        place, seal = self._own_or(request, first)
        with self._slots.arena(place).pin(seal) as pin:
            found = await asyncio.to_thread(self._slots.checksum, place, seal)
            state = State(seal.step, seal.round, seal.replicated, seal.pieces, seal.ranks)
            return await self._filler.fill(request, [SlotSource(pin, found)], state)

    def _own_or(self, request: RestoreRequest, first: Seal) -> tuple[int, Seal]:
        """The rank's own whole slot of that state, of before it kept light ones; or the first's."""
        for seal in self._slots.arena(request.local_rank).of_state(first.step, first.round):
            if seal.replicated:
                return request.local_rank, seal
        return 0, first

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
            same = (seal.step, seal.round) == (chosen.step, chosen.round)
            # Others may have been sent to it: one for another number of ranks has other bytes.
            needed = not chosen.replicated or seal.ranks != chosen.ranks
            source = same and needed and seal.sequence < chosen.sequence
            if seal.slot != chosen.slot and seal.step >= chosen.step and not source:
                arena.discard(seal)


def _plain(choice: ResolveReply, head: Snapshot) -> RestoreReply:
    if STATE_KEY not in head.metadata:
        raise errors.TornSnapshot(f"step {choice.step} has no state in it")
    return RestoreReply(choice.step, choice.source, plain=head.metadata[STATE_KEY])
