# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's slot filled with what it is to go on from: a source as it is, or several together."""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
from collections.abc import Sequence

from rover_kf.api.checkpoints import ArenaRequest, RestoreRequest
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import SlotWrite
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
from rover_kf.checkpoint.resharding.assembly import Assembler, Assembly
from rover_kf.checkpoint.resharding.requested_boxes import (
    RequestedBoxIndex,
    index_requested,
    matches_request,
)
from rover_kf.sidecar.restore.header_cache import HeaderCache
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import SnapshotSource, copy_into, copy_verified
from rover_kf.sidecar.tasks import acquire_in_thread


@dataclasses.dataclass(frozen=True, slots=True)
class SourceState:
    """Which state a slot is filled with, as it was saved."""

    state: State
    replicated: bool
    pieces: bool


class SlotAssembler:
    """One a sidecar.

    Args:
        slots: this pod's.
        server: of this pod's slots to others.
    """

    def __init__(self, slots: PodSlots, server: SlotServer) -> None:
        self._slots, self._server, self._headers = slots, server, HeaderCache()
        self._lock = asyncio.Lock()

    async def fill(
        self,
        request: RestoreRequest,
        sources: Sequence[SnapshotSource],
        state: SourceState,
        *,
        rebuilding: bool = False,
        same_world: bool = False,
    ) -> Seal:
        """Fill and seal a slot of the rank that asks.

        Args:
            request: of the rank.
            sources: the first one has the rank's own tensors.
            state: that the sources hold.
            rebuilding: whether replicas are still to be read.
            same_world: whether the first source is of this rank in a world of this size.

        Raises:
            CorruptSnapshot: the bytes that came are not those promised.
            CheckpointError: the sources do not hold all of it, or it does not fit.
            StorageError: the storage cannot be read.
            ClusterUnavailable: a peer cannot be reached.
        """
        made = await self._plan(sources, request, state, same_world=same_world)
        length = made.length if made else sources[0].length
        cut = made is not None and made.is_sharded
        in_pieces = state.pieces or cut
        wanted = ArenaRequest(request.local_rank, length)
        await asyncio.to_thread(self._slots.allocate, wanted, rebuilding=rebuilding)
        arena = self._slots.arena(request.local_rank)
        self._server.end_other_reads(request.local_rank, state.state)
        with await acquire_in_thread(arena.fill, SlotWrite.close) as filling:
            if made is None:
                await copy_into(sources[0], filling.descriptor)
            else:
                await _assemble(made, sources, filling.descriptor)
            seal = filling.seal(
                state=state.state,
                length=length,
                rank=request.rank,
                world_size=request.world_size,
                replicated=state.replicated and not in_pieces,
                pieces=in_pieces,
            )
        if made is None:
            arena.record.write_checksum(seal, sources[0].checksum)
        return seal

    async def _plan(
        self,
        sources: Sequence[SnapshotSource],
        request: RestoreRequest,
        state: SourceState,
        *,
        same_world: bool,
    ) -> Assembly | None:
        """How the snapshot is put together; None: the first source is taken as it is."""
        wishes = index_requested(request.requested)
        if len(sources) == 1 and not request.requested:
            return None
        own = same_world and state.pieces  # else others write a part of what it needs
        if own and await self._is_sufficient(sources[0], wishes):
            return None
        same_place = same_world and len(sources) == 1
        assembler = Assembler(wishes, same_rank=same_place)
        with self._headers.session():
            async for index, head in self._headers.read_all(sources):
                await asyncio.to_thread(assembler.add, index, head.snapshot, head.layout)
        async with self._lock:  # a plan takes as much again while it is made
            return await asyncio.to_thread(assembler.build, len(sources))

    async def _is_sufficient(self, source: SnapshotSource, requested: RequestedBoxIndex) -> bool:
        """Whether a rank needs no more than its own; looked at for one at a time, for the room."""
        async with self._lock:
            head = await source.head()
            kinds = await asyncio.to_thread(read_tensor_layout, head)
            return await asyncio.to_thread(matches_request, head, kinds, requested)


async def _assemble(plan: Assembly, sources: Sequence[SnapshotSource], descriptor: int) -> None:
    with mmap.mmap(descriptor, plan.length) as mapping, memoryview(mapping) as target:
        target[: len(plan.header)] = plan.header
        for source, copies in zip(sources, plan.copies, strict=True):
            # Of the first one plain data are taken, too.
            if copies or source is sources[0]:
                await copy_verified(source, copies, target)
