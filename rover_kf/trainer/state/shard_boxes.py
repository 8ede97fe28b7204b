# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The boxes of plain tensors that an optimizer keeps of local parts of parameters.

``zeros_like(p.to_local())`` does not say which rows it is about. So each is saved with its box, and
returns to a rank with the same box only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import torch

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import reading
from rover_kf.trainer.state.dtensor import DTensorLayouts, LocalShard

KEY = "rover.boxes"
"""Metadata: JSON of [[shape of the whole parameter, offsets, sizes, names of tensors], …]."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardBox:
    """The part of a parameter that a rank holds."""

    shape: tuple[int, ...]
    """Of the whole parameter."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the rank holds all of it."""
        return self.sizes == self.shape


def box_of(shard: LocalShard) -> ShardBox:
    """Return the box of a live parameter."""
    return ShardBox(shard.piece.shape, shard.piece.offsets, shard.sizes)


def belongs_to_shard(tensor: torch.Tensor, parameter: LocalShard) -> bool:
    """Whether a plain tensor of an optimizer is about the part, and no single number."""
    return tensor.ndim > 0 and (tensor.numel() > 1 or tuple(tensor.shape) == parameter.sizes)


def to_text(boxes: Mapping[str, ShardBox]) -> str:
    """As it stands in the metadata."""
    names: dict[ShardBox, list[str]] = {}
    for name, box in boxes.items():
        names.setdefault(box, []).append(name)
    tree = [[box.shape, box.offsets, box.sizes, some] for box, some in names.items()]
    return json.dumps(tree, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> Mapping[str, ShardBox]:
    """Boxes by the tensors' names; none in a snapshot without such tensors.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("boxes"):
        return {
            name: ShardBox(tuple(shape), tuple(offsets), tuple(sizes))
            for shape, offsets, sizes, names in json.loads(metadata.get(KEY, "[]"))
            for name in names
        }


def check_boxes(saved: Mapping[str, ShardBox], begin: str, live: DTensorLayouts) -> None:
    """Check that an optimizer's plain tensors are about what this rank holds.

    ``begin`` begins the names of the optimizer's tensors.

    Raises:
        IncompatibleState: one is about another box.
    """
    for name, box in saved.items():
        if not name.startswith(begin):
            continue
        shard = next(live.parameters.matches(name), None)
        if box != box_of(shard) if shard is not None else not box.is_whole:
            held = box_of(shard) if shard is not None else "the whole parameter"
            raise errors.IncompatibleState(
                f"{name} is a plain tensor that the optimizer keeps of {box}, and this rank holds "
                f"{held}: it would be about other rows. Restore it in a world of the size and mesh "
                "that saved it, or have the optimizer keep DTensors (torch.zeros_like of the "
                "parameter, not of its local part)"
            )
