# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checksums of the tensors of a sealed slot that all ranks should hold alike.

The slot is pinned for a few milliseconds at a time: a save that wants it has it at once, and the
sums are given up. Nothing depends on them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

from rover_kf.api.replication import TensorChecksum
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import checksum
from rover_kf.checkpoint.format.snapshot import PlacedTensor, Snapshot
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
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
    found = {place.entry.name: checksum.extend(0, _describe(place)) for place in places}
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


def _describe(tensor: PlacedTensor) -> bytes:
    return f"{tensor.entry.dtype} {tensor.entry.shape}".encode()


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
