# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's slot filled with what it is to go on from: a source as it is, or several together."""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
from collections.abc import Sequence

from rover_kf.api.checkpoints import ArenaRequest, RestoreRequest
from rover_kf.checkpoint.arena.arena import Filling
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format.tensor_layout import kinds_of
from rover_kf.checkpoint.resharding.assembly import Assembler, Assembly
from rover_kf.checkpoint.resharding.requested_boxes import Wishes, lies_as_wished, wishes_of
from rover_kf.sidecar.restore.header_cache import Heads
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import Slots
from rover_kf.sidecar.slots.sources import Source, copy_into, move
from rover_kf.sidecar.tasks import handed


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """Which state a slot is filled with."""

    step: int
    round: int
    """In which it came to be."""
    replicated: bool
    pieces: bool
    ranks: int = 1
    """Of a pod that start from the one source, if there is but one."""


class SlotFiller:
    """One a sidecar.

    Args:
        slots: this pod's.
        server: of this pod's slots to others.
    """

    def __init__(self, slots: Slots, server: SlotServer) -> None:
        self._slots, self._server, self._heads = slots, server, Heads()
        self._turn = asyncio.Lock()

    async def fill(
        self,
        request: RestoreRequest,
        sources: Sequence[Source],
        state: State,
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
            TornSnapshot: the bytes that came are not those promised.
            CheckpointError: the sources do not hold all of it, or it does not fit.
            StorageFailed: the storage cannot be read.
            ClusterUnavailable: a peer cannot be reached.
        """
        made = await self._made(sources, request, state, same_world=same_world)
        length = made.length if made else sources[0].length
        cut = made is not None and made.in_pieces
        light = not request.ranks
        in_pieces = (state.pieces or cut) and not light
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
                replicated=state.replicated and not in_pieces and not light,
                pieces=in_pieces,
                ranks=1 if cut else request.ranks,
            )
        if made is None:
            arena.control.write_checksum(seal, sources[0].checksum)
        return seal

    async def _made(
        self,
        sources: Sequence[Source],
        request: RestoreRequest,
        state: State,
        *,
        same_world: bool,
    ) -> Assembly | None:
        """How the snapshot is put together; None: the first source is taken as it is."""
        wishes, alike = wishes_of(request.wanted), request.ranks == state.ranks
        if alike and len(sources) == 1 and not request.wanted:
            return None
        own = alike and same_world and state.pieces  # else others write a part of what it needs
        if own and await self._is_all(sources[0], wishes):
            return None
        same_place = same_world and len(sources) == 1
        assembler = Assembler(wishes, ranks=request.ranks, same_place=same_place)
        with self._heads.reading():
            async for index, head in self._heads.of_all(sources):
                await asyncio.to_thread(assembler.add, index, head.snapshot, head.kinds)
        async with self._turn:  # a plan takes as much again while it is made
            return await asyncio.to_thread(assembler.made, len(sources))

    async def _is_all(self, source: Source, wishes: Wishes) -> bool:
        """Whether a rank needs no more than its own; looked at for one at a time, for the room."""
        async with self._turn:
            head = await source.head()
            kinds = await asyncio.to_thread(kinds_of, head)
            return await asyncio.to_thread(lies_as_wished, head, kinds, wishes)


async def _assemble(made: Assembly, sources: Sequence[Source], descriptor: int) -> None:
    with mmap.mmap(descriptor, made.length) as mapping, memoryview(mapping) as target:
        target[: len(made.header)] = made.header
        for source, copies in zip(sources, made.copies, strict=True):
            if copies:
                await move(source, copies, target)
