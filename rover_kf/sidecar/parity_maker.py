# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's half of parities: makes its own of stripes of other pods' slots (checkpoint.parity).

All slots of a lane are read at once, so that all are pinned from the first byte to the last. The
parity is sealed once the coordinator has found that the stripes that all pods of the group have
read make up the very slots that were ordered. Until then the one before it stays, in the other
slot; where the arena has room for one only, there is none meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import mmap
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import Lane
from rover_kf.api.replication import ParityMade, ParityVerdict
from rover_kf.checkpoint import checksum
from rover_kf.checkpoint.arena import Arena, Filling
from rover_kf.checkpoint.bandwidth import Cap
from rover_kf.checkpoint.parity import Layout
from rover_kf.sidecar import parity_slot, xor
from rover_kf.sidecar.peer_source import PeerSource
from rover_kf.sidecar.seams import Peers
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots import Slots
from rover_kf.sidecar.together import handed, to_the_end, together

_LONG_POLL_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """A parity that is whole and not sealed."""

    arena: Arena
    filling: Filling
    lane: Lane
    length: int
    """With what stands before it, bytes."""
    checksum: int
    sums: tuple[int, ...]
    """Of the members' stripes."""

    def seal(self) -> None:
        first = self.lane.members[0]
        seal = self.filling.seal(
            step=first.step,
            length=self.length,
            rank=first.rank,
            world_size=first.world_size,
            round_=first.round,
            replicated=False,
            pieces=first.pieces,
        )
        self.arena.control.write_checksum(seal, self.checksum)


class ParityMaker:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        peers: the coordinator and other sidecars.
        cap: on what is read of other pods.
    """

    def __init__(self, settings: SidecarSettings, slots: Slots, peers: Peers, cap: Cap) -> None:
        self._settings, self._slots = settings, slots
        self._peers, self._cap = peers, cap

    async def make(self, number: int, lanes: Sequence[Lane]) -> str:
        """Make a parity of each lane, and seal them all.

        Args:
            number: of the order.
            lanes: of the order.

        Returns:
            Why they are not sealed, though nothing went wrong here; empty if they are.

        Raises:
            ArenaTooSmall: there is no room for them.
            TornSnapshot: a slot was overwritten, or what was read is not what was ordered.
            ClusterUnavailable: a pod or the coordinator cannot be reached.
        """
        kept = {lane.number for lane in lanes}
        await asyncio.to_thread(self._slots.forget_parities, kept)
        with contextlib.ExitStack() as fillings:
            made = [await self._lane(lane, fillings) for lane in lanes]
            verdict = await self._verdict(number, made)
            if verdict.reason and not verdict.told:
                raise errors.TornSnapshot(verdict.reason)
            for one in made if not verdict.reason else ():
                one.seal()
            return verdict.reason

    async def _lane(self, lane: Lane, fillings: contextlib.ExitStack) -> _Made:
        layout = Layout(tuple(member.snapshot_bytes for member in lane.members))
        head = parity_slot.head(lane)
        length = len(head) + layout.width
        arena = await asyncio.to_thread(self._slots.allocate_parity, lane.number, length)
        for seal in arena.sealed():
            if seal.step >= lane.members[0].step:  # Of a course that the job has left.
                arena.discard(seal)
        only = None if arena.slot_path(1).exists() else 0
        take = functools.partial(arena.fill, only=only)
        filling = await handed(take, Filling.close)
        fillings.push(filling)
        with mmap.mmap(filling.descriptor, length) as mapping, memoryview(mapping) as target:
            target[: len(head)] = head
            with target[len(head) :] as parity:
                sums = await self._mixed(lane, layout, parity)
            found = await to_the_end(lambda: checksum.extend(0, target))
        return _Made(arena, filling, lane, length, found, sums)

    async def _mixed(self, lane: Lane, layout: Layout, parity: memoryview) -> tuple[int, ...]:
        """Mix the stripes; the checksum of each member's, 0 for this pod's own."""
        await to_the_end(lambda: xor.clear(parity))
        own = [member.pod for member in lane.members].index(self._settings.pod)
        turn = asyncio.Lock()
        others = layout.others(own)
        found = await together(
            self._stripe(lane, number, layout.stripe(number, own), parity, turn)
            for number in others
        )
        sums = dict(zip(others, found, strict=True))
        return tuple(sums.get(number, 0) for number in range(len(lane.members)))

    async def _stripe(
        self, lane: Lane, number: int, span: range, parity: memoryview, turn: asyncio.Lock
    ) -> int:
        """Mix in one stripe; its checksum."""
        if not span:
            return 0
        at, found = 0, 0
        source = PeerSource(self._peers, lane.members[number])
        async with contextlib.aclosing(source.part(span)) as blocks:
            async for block in blocks:
                await asyncio.sleep(self._cap.spend(len(block)))
                async with turn:
                    found = await _mix(parity[at:], block, found)
                at += len(block)
        return found

    async def _verdict(self, number: int, made: Sequence[_Made]) -> ParityVerdict:
        """Wait for the coordinator's word that all of the group have read the same."""
        sums = tuple(one.sums for one in made)
        told = ParityMade(self._settings.pod, number, sums, _LONG_POLL_SECONDS)
        while True:
            verdict = await self._peers.ask_coordinator(names.PATH_PARITY_MADE, told, ParityVerdict)
            if verdict.known:
                return verdict


async def _mix(target: memoryview, block: memoryview, before: int) -> int:
    if len(block) > len(target):
        raise errors.TornSnapshot(f"{len(block)} bytes came where {len(target)} were asked for")

    def mix() -> int:
        xor.into(target, block)
        return checksum.extend(before, block)

    with target:
        return await to_the_end(mix)
