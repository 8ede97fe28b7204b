# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which part of which tensor a snapshot holds; pure.

A tensor of a snapshot is one of three kinds:

- *own*: the rank's alone (BatchNorm's running figures, a random generator's state);
- *shared*: the same on every rank (DDP's parameters and their optimizer's state);
- a *piece*: a box of a tensor that several ranks hold together (FSDP2, tensor parallel: DTensor).

On storage a shared tensor is cut into pieces as well, so that it is written once and by all ranks.
The trainer writes the kinds into the snapshot's metadata, the sidecar reads them. Standard library
only: it enters the user's image.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import Entry, Snapshot, reading

LAYOUT_KEY = "rover.pieces"
"""Metadata: JSON of {"own": [names], "pieces": {name: [shape, offsets, copy]}}, and "alike": false
where shared tensors need not be bit-equal, "complete": true where a rank with pieces needs no other
snapshot."""


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: where it begins and how far it goes in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return math.prod(self.sizes) == 0

    def overlap(self, other: Box) -> Box | None:
        """What both hold; None if that is nothing."""
        begins: list[int] = []
        sizes: list[int] = []
        axes = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        for offset, size, other_offset, other_size in axes:
            begin = max(offset, other_offset)
            end = min(offset + size, other_offset + other_size)
            if begin >= end:
                return None
            begins.append(begin)
            sizes.append(end - begin)
        return Box(tuple(begins), tuple(sizes))


@dataclasses.dataclass(frozen=True, slots=True)
class TensorShard:
    """What a snapshot says of a tensor that it holds a part of."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    """Where the part begins."""
    copy: int = 0
    """Ranks that hold the same part count up from 0; only the first one's goes to storage."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorLayout:
    """Of all tensors of a snapshot; what is named in neither is shared."""

    rank_local: frozenset[str] = frozenset()
    shards: Mapping[str, TensorShard] = dataclasses.field(default_factory=dict)
    bit_equal: bool = True
    """Shared tensors are bit-equal on every rank; False: any rank's will do (torch's DCP)."""
    complete: bool = False
    """The rank that holds pieces has all that it saved in this snapshot."""

    def to_text(self) -> str:
        """As it stands in the metadata."""
        pieces = {name: [p.shape, p.offsets, p.copy] for name, p in self.shards.items()}
        tree: dict[str, object] = {"own": sorted(self.rank_local), "pieces": pieces}
        if not self.bit_equal:
            tree["alike"] = False
        if self.complete:
            tree["complete"] = True
        return json.dumps(tree, separators=(",", ":"))

    def box(self, entry: Entry) -> Box:
        """Which part of its tensor an entry is; the whole one unless it is a piece."""
        piece = self.shards.get(entry.name)
        return Box(piece.offsets if piece else (0,) * len(entry.shape), entry.shape)

    def full_shape(self, entry: Entry) -> tuple[int, ...]:
        """Of the whole tensor."""
        piece = self.shards.get(entry.name)
        return piece.shape if piece else entry.shape


def read_tensor_layout(snapshot: Snapshot) -> TensorLayout:
    """Read the kinds from a snapshot's metadata; without any, every tensor is the rank's own.

    Raises:
        CorruptSnapshot: they cannot be read, or a piece does not lie inside its tensor.
    """
    text = snapshot.metadata.get(LAYOUT_KEY)
    if text is None:
        return TensorLayout(rank_local=frozenset(snapshot.tensors))
    with reading("pieces"):
        parsed = json.loads(text)
        own = frozenset(str(name) for name in parsed["own"])
        shared: dict[TensorShard, TensorShard] = {}  # of tens of thousands many are cut alike
        pieces = {
            sys.intern(name): shared.setdefault(piece, piece)
            for name, piece in (
                (str(n), _parse_shard(told)) for n, told in parsed["pieces"].items()
            )
        }
        alike = bool(parsed.get("alike", True))
        complete = bool(parsed.get("complete", False))
    for name, piece in pieces.items():
        _check_inside(name, piece, snapshot)
    return TensorLayout(own, pieces, alike, complete)


def _parse_shard(encoded: Sequence[Any]) -> TensorShard:
    shape, offsets, copy = encoded
    return TensorShard(tuple(map(int, shape)), tuple(map(int, offsets)), int(copy))


def _check_inside(name: str, piece: TensorShard, snapshot: Snapshot) -> None:
    place = snapshot.tensors.get(name)
    sizes = place.entry.shape if place else ()
    fits = len(piece.shape) == len(piece.offsets) == len(sizes) and all(
        begin >= 0 and begin + size <= whole
        for begin, size, whole in zip(piece.offsets, sizes, piece.shape, strict=True)
    )
    if place is None or not fits:
        raise errors.CorruptSnapshot(f"{name} of shape {sizes} does not lie inside {piece}")
