# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A lost slot, put together from parities and the slots that are left; a Source like any other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Sequence

from rover_kf import errors
from rover_kf.api.checkpoints import Rebuild
from rover_kf.checkpoint import snapshot
from rover_kf.checkpoint.parity import Layout
from rover_kf.checkpoint.snapshot import Snapshot
from rover_kf.sidecar import xor
from rover_kf.sidecar.peer_source import PeerSource
from rover_kf.sidecar.seams import Peers
from rover_kf.sidecar.together import to_the_end, together

PIECE_BYTES = 1 << 20
"""Of each of the pods that are read at the same time."""


@dataclasses.dataclass(frozen=True, slots=True)
class ParitySource:
    """See the module; methods as in Source.

    Its checksum is the one that the lost slot had when the parity was made.

    Args:
        peers: other sidecars, this pod's own among them.
        rebuild: what to put together from what.
        turn: held while it is read: of all ranks of a pod one at a time, as it takes memory.
    """

    peers: Peers
    rebuild: Rebuild
    turn: asyncio.Lock

    @property
    def length(self) -> int:
        """Bytes."""
        return self.rebuild.holding.snapshot_bytes

    @property
    def checksum(self) -> int:
        """CRC-32C that was promised."""
        return self.rebuild.holding.checksum

    async def head(self) -> Snapshot:
        """See Source."""
        found = bytearray()
        async with contextlib.aclosing(self.blocks()) as blocks:
            async for block in blocks:
                found += block
                if len(found) >= snapshot.LENGTH_BYTES:
                    size = snapshot.head_bytes(bytes(found[: snapshot.LENGTH_BYTES]), self.length)
                    if len(found) >= size:
                        head = bytes(found[:size])
                        return await asyncio.to_thread(snapshot.read, head, self.length)
        raise errors.TornSnapshot(f"{self.rebuild.holding} has no header")

    async def blocks(self) -> AsyncGenerator[memoryview, None]:
        """See Source."""
        members = self.rebuild.members
        lost = members.index(self.rebuild.holding)
        layout = Layout(tuple(member.snapshot_bytes for member in members))
        by_pod = {parity.slot.pod: parity for parity in self.rebuild.parities}
        async with self.turn:
            for holder in layout.holders(lost):
                size = len(layout.stripe(lost, holder))
                parity = by_pod[members[holder].pod]
                spans = [(parity.slot, range(parity.begin, parity.begin + size))]
                spans += [
                    (members[number], layout.stripe(number, holder)[:size])
                    for number in layout.others(holder, lost)
                ]
                parts = [PeerSource(self.peers, slot).part(span) for slot, span in spans if span]
                async with contextlib.aclosing(_mixed(parts, size)) as stripe:
                    async for block in stripe:
                        yield block


async def _mixed(
    parts: Sequence[AsyncGenerator[memoryview, None]], size: int
) -> AsyncGenerator[memoryview, None]:
    """Exclusive or of several parts, the shorter ones as if zeros stood behind them."""
    async with contextlib.AsyncExitStack() as stack:
        readers = [_Reader(await stack.enter_async_context(contextlib.aclosing(p))) for p in parts]
        for begin in range(0, size, PIECE_BYTES):
            count = min(PIECE_BYTES, size - begin)
            found = await together(reader.take(count) for reader in readers)
            mixed = memoryview(bytearray(count))
            for block in found:
                await to_the_end(functools.partial(xor.into, mixed, block))
            yield mixed


@dataclasses.dataclass(slots=True)
class _Reader:
    """Gives blocks of the size that is asked for."""

    blocks: AsyncGenerator[memoryview, None]
    rest: bytearray = dataclasses.field(default_factory=bytearray)

    async def take(self, count: int) -> bytes:
        """So many bytes, or those that are left."""
        while len(self.rest) < count:
            block = await anext(self.blocks, None)
            if block is None:
                break
            self.rest += block
        taken = bytes(self.rest[:count])
        del self.rest[:count]
        return taken
