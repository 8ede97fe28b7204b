# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank writes to storage of its slot, so that all ranks together write all of it; pure.

Its own tensors, its pieces, and its share of the shared tensors: these are laid end to end and cut
into as many equal parts as there are ranks, at the nearest row, small tensors whole. Every rank
computes the same cuts, since shared tensors have the same names, types and shapes everywhere. So
all is written once, but for an optimizer's counters beside pieces, which are next to nothing.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator, Sequence

from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry, PlacedTensor, Snapshot
from rover_kf.checkpoint.format.tensor_layout import (
    LAYOUT_KEY,
    TensorLayout,
    TensorShard,
    read_tensor_layout,
)

SMALL_BYTES = 64 << 10
"""A tensor up to this size is not cut."""
MAX_SHARED = 32
"""Of a rank's file what other ranks store, too, is at most one part in so many."""


@dataclasses.dataclass(frozen=True, slots=True)
class WriteShare:
    """A rank's file: its first bytes, then ranges of the slot, end to end."""

    header: bytes
    """Empty where the file is the slot, whose header comes with the ranges."""
    ranges: tuple[tuple[int, int], ...]
    """Begin and end in the slot; adjoining ones are joined."""
    length: int
    """Bytes of the file."""
    replicated_crc: int
    """CRC-32 of what the shared tensors are; the ranks must agree on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _TensorPart:
    """Some rows of a tensor of the slot, or all of it."""

    tensor: PlacedTensor
    shard: TensorShard | None = None


def plan_share(whole: Snapshot, rank: int, world_size: int) -> WriteShare:
    """The part of a snapshot that a rank writes.

    Args:
        whole: the slot's.
        rank: whose file it is.
        world_size: how many ranks write.
    """
    kinds = read_tensor_layout(whole)
    places = sorted(whole.tensors.values(), key=_file_order)
    apart = kinds.rank_local | kinds.shards.keys()
    shared = [place for place in places if place.entry.name not in apart]
    common = replicated_crc(place.entry for place in shared)
    if _is_whole_slot(whole, kinds, shared):
        return WriteShare(b"", ((0, whole.length),), whole.length, common)
    chosen = list(_select_parts(shared, rank, world_size))
    for place in places:
        piece = kinds.shards.get(place.entry.name)
        if place.entry.name in kinds.rank_local or (piece is not None and piece.copy == 0):
            chosen.append(_TensorPart(place, piece))
    pieces = {part.tensor.entry.name: part.shard for part in chosen if part.shard is not None}
    metadata = {**whole.metadata, LAYOUT_KEY: TensorLayout(kinds.rank_local, pieces).to_text()}
    metadata.pop(snapshot.TYPES_KEY, None)  # the header's own; written anew
    layout = snapshot.plan((part.tensor.entry for part in chosen), metadata)
    head = snapshot.header(layout, metadata)
    assert head is not None  # noqa: S101 - a new layout has room for its own header
    # In the file's order, which need not be the slot's: a cut tensor may stand elsewhere.
    places_by_name = {part.tensor.entry.name: part.tensor for part in chosen}
    inside = (places_by_name[place.entry.name] for place in layout.tensors)
    ranges = _join_ranges((place.begin, place.end) for place in inside)
    return WriteShare(head, tuple(ranges), layout.length, common)


def _is_whole_slot(
    whole: Snapshot, tensor_layout: TensorLayout, shared: Sequence[PlacedTensor]
) -> bool:
    """Whether the slot is the file as it is: pieces (FSDP2), and beside them a few counters.

    So a rank of the same world needs no other rank's file, and nobody has to make a header anew.
    """
    first = all(piece.copy == 0 for piece in tensor_layout.shards.values())
    few = sum(place.entry.nbytes for place in shared) * MAX_SHARED <= whole.length
    return tensor_layout.complete and first and few


def replicated_crc(shared: Iterable[Entry]) -> int:
    """CRC-32 of what the shared tensors are.

    Args:
        shared: in a snapshot's order.
    """
    facts = [(entry.name, entry.dtype, entry.shape) for entry in shared]
    return zlib.crc32(repr(facts).encode())


def _file_order(tensor: PlacedTensor) -> tuple[int, int]:
    return tensor.begin, tensor.end  # an empty tensor stands where the next one begins


def _select_parts(
    shared: Sequence[PlacedTensor], rank: int, world_size: int
) -> Iterator[_TensorPart]:
    total = sum(place.entry.nbytes for place in shared)
    first, last = (total * edge // world_size for edge in (rank, rank + 1))
    if rank == world_size - 1:
        last += 1  # empty tensors at the very end
    begin = 0
    for place in shared:
        part = _select_rows(place, first - begin, last - begin)
        if part is not None:
            yield part
        begin += place.entry.nbytes


def _select_rows(tensor: PlacedTensor, first: int, last: int) -> _TensorPart | None:
    """What lies between two bytes, counted from the tensor's begin."""
    entry = tensor.entry
    rows = entry.shape[0] if entry.shape else 1
    if entry.nbytes <= SMALL_BYTES or rows == 1:
        return _TensorPart(tensor) if first <= 0 < last else None
    width = entry.nbytes // rows
    begin, end = (min(max(round(at / width), 0), rows) for at in (first, last))
    if begin >= end:
        return None
    if (begin, end) == (0, rows):
        return _TensorPart(tensor)
    part = entry._replace(shape=(end - begin, *entry.shape[1:]))
    piece = TensorShard(entry.shape, (begin, *(0 for _ in entry.shape[1:])))
    return _TensorPart(
        PlacedTensor(part, tensor.begin + begin * width, tensor.begin + end * width), piece
    )


def _join_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current = (0, 0)
    for begin, end in ranges:
        if begin == current[1]:
            current = (current[0], end)
            continue
        if current[0] != current[1]:
            yield current
        current = (begin, end)
    if current[0] != current[1]:
        yield current
