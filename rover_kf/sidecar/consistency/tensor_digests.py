# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checksums of the tensors of a sealed slot that all ranks should hold alike.

The slot is pinned for a few milliseconds at a time: a save that wants it has it at once, and the
sums are given up. Nothing depends on them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

from rover_kf.api.replica_checks import TensorSum
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import checksum
from rover_kf.checkpoint.format.snapshot import Placed, Snapshot
from rover_kf.checkpoint.format.tensor_layout import kinds_of
from rover_kf.sidecar.slots.sources import read_head

PINNED_BYTES = 16 << 20
"""Read under one pin."""


def of_slot(arena: Arena, seal: Seal) -> tuple[TensorSum, ...]:
    """CRC-32C of each of them, in the file's order. Blocks.

    Args:
        arena: of a local rank.
        seal: of the slot.

    Raises:
        TornSnapshot: the slot no longer holds that snapshot.
    """
    with arena.pin(seal) as pin:
        places = alike(read_head(pin.descriptor, seal.length))
        slot = memoryview(mmap.mmap(pin.descriptor, seal.length, access=mmap.ACCESS_READ))
    found = {place.entry.name: checksum.extend(0, _facts(place)) for place in places}
    for batch in _batches(places):
        with arena.pin(seal):
            for name, begin, end in batch:
                found[name] = checksum.extend(found[name], slot[begin:end])
    return tuple(TensorSum(name, value) for name, value in found.items())


def alike(whole: Snapshot) -> list[Placed]:
    """The tensors that are bit-equal on every rank, in the file's order.

    Neither a rank's own (BatchNorm's running figures) nor pieces of larger ones.

    Raises:
        TornSnapshot: the snapshot does not say which they are.
    """
    kinds = kinds_of(whole)
    if not kinds.alike:
        return []
    others = kinds.own | kinds.pieces.keys()
    found = (place for name, place in whole.tensors.items() if name not in others)
    return sorted(found, key=lambda place: (place.begin, place.end))


def _facts(place: Placed) -> bytes:
    return f"{place.entry.dtype} {place.entry.shape}".encode()


def _batches(places: Sequence[Placed]) -> Iterator[list[tuple[str, int, int]]]:
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
