# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The checksums of a pod's replicated tensors, for the comparison of replicas.

They never delay training: one slot at a time, in a thread of low priority, pinned for a few
milliseconds, so that a save gets its slot at once. An overwritten slot or a silent coordinator
costs this one check.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import mmap
from collections.abc import Iterator, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.replication import DigestAck, ReplicaDigest, TensorChecksum
from rover_kf.checkpoint import divergence
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import checksum
from rover_kf.checkpoint.format.snapshot import PlacedTensor, Snapshot
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import read_header

PINNED_BYTES = 16 << 20
"""Read under one pin."""


def digest_slot(arena: Arena, seal: Seal) -> tuple[TensorChecksum, ...]:
    """Compute the CRC-32C of each comparable tensor in the file's order. Blocks.

    Raises:
        CorruptSnapshot: the slot no longer holds that snapshot.
    """
    with arena.pin(seal) as pin:
        places = comparable_tensors(read_header(pin.descriptor, seal.length))
        slot = memoryview(mmap.mmap(pin.descriptor, seal.length, access=mmap.ACCESS_READ))
    entries = (place.entry for place in places)
    found = {e.name: checksum.extend(0, f"{e.dtype} {e.shape}".encode()) for e in entries}
    for batch in _batches(places):
        with arena.pin(seal):
            for name, begin, end in batch:
                found[name] = checksum.extend(found[name], slot[begin:end])
    return tuple(TensorChecksum(name, value) for name, value in found.items())


def comparable_tensors(whole: Snapshot) -> list[PlacedTensor]:
    """The tensors that are bit-equal on every rank, in the file's order.

    Neither a rank's own (BatchNorm's running figures) nor pieces of larger ones.

    Raises:
        CorruptSnapshot: the snapshot does not say which they are.
    """
    kinds = read_tensor_layout(whole)
    if not kinds.bit_equal:
        return []
    others = kinds.rank_local | kinds.shards.keys()
    found = (place for name, place in whole.tensors.items() if name not in others)
    return sorted(found, key=lambda tensor: (tensor.begin, tensor.end))


def _batches(places: Sequence[PlacedTensor]) -> Iterator[list[tuple[str, int, int]]]:
    """Ranges of the slot, each with its tensor's name; so many as are read under one pin."""
    batch: list[tuple[str, int, int]] = []
    room = PINNED_BYTES
    for place in places:
        begin = place.begin
        while begin < place.end:
            end = min(place.end, begin + room)
            batch.append((place.entry.name, begin, end))
            room -= end - begin
            begin = end
            if not room:
                yield batch
                batch, room = [], PINNED_BYTES
    if batch:
        yield batch


_log = logging.getLogger(__name__)


class ReplicaDigester:
    """A worker that sends checksums of this pod's slots to the coordinator."""

    def __init__(self, settings: SidecarSettings, slots: PodSlots, peers: PeerClient) -> None:
        self._settings, self._slots, self._peers = settings, slots, peers
        self._lock = asyncio.Lock()
        self._running: dict[int, asyncio.Task[None]] = {}

    def begin(self, sealed: SlotSealed) -> None:
        """Check a slot in the background; this rank's last check is over, done or not.

        So it is on every rank: none waits for another that is at a later step.
        """
        before = self._running.get(sealed.local_rank)
        if before is not None:
            before.cancel()
        self._running[sealed.local_rank] = asyncio.create_task(self._digest(sealed))

    async def stop(self) -> None:
        """Give up what goes on."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    async def _digest(self, sealed: SlotSealed) -> None:
        told = ReplicaDigest(
            pod=self._settings.pod,
            rank=sealed.rank,
            world_size=sealed.world_size,
            state=sealed.state,
        )
        try:
            async with self._lock:
                sums = await asyncio.to_thread(self._tensor_sums, sealed)
        except (errors.CorruptSnapshot, OSError) as overwritten:
            _log.info("rank %d: %s is not checked: %s", told.rank, told.state, overwritten)
            await self._send(told)
            return
        if sums:
            found = divergence.combine_digests(sums)
            told = dataclasses.replace(told, tensors=len(sums), digest=found)
            if await self._send(told):
                await self._send(
                    dataclasses.replace(told, listing=divergence.condense_listing(sums))
                )

    def _tensor_sums(self, sealed: SlotSealed) -> tuple[TensorChecksum, ...]:
        arena = self._slots.arena(sealed.local_rank)
        for seal in arena.sealed():
            if (seal.slot, seal.state) == (sealed.slot, sealed.state):
                return digest_slot(arena, seal)
        raise errors.CorruptSnapshot(f"slot {sealed.slot} no longer holds {sealed.state}")

    async def _send(self, digest: ReplicaDigest) -> bool:
        """Whether the listing is wanted."""
        try:
            path = names.PATH_REPLICA_DIGEST
            taken = await self._peers.call_coordinator(path, digest, DigestAck)
        except errors.RoverError as error:
            _log.info("the coordinator does not compare %s: %s", digest.state, error)
            return False
        return taken.send_listing
