# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Layouts of saved DTensors that the live state lacks, so that they can be rebuilt.

Examples are best weights that a loop keeps, and an optimizer's state as a plain dict. The live
state has the layouts of modules and optimizers.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import reading
from rover_kf.checkpoint.format.tensor_layout import TensorShard
from rover_kf.trainer.state import strides
from rover_kf.trainer.state.dtensor import (
    DTensorLayouts,
    LocalShard,
    local_box,
    torch_module,
)

KEY = "rover.layouts"
"""Metadata: JSON of [[names of the mesh's dimensions or null, a text for each dimension, names of
tensors], …]: ``R`` replicated, ``S0`` cut along dimension 0, ``X0`` cut so before a later dimension
of the mesh cuts it again."""


@dataclasses.dataclass(frozen=True, slots=True)
class SavedLayout:
    """A layout of a saved DTensor."""

    dimensions: tuple[str, ...] | None
    """Names of the mesh's; None: it has none."""
    placements: tuple[str, ...]
    """As ``KEY`` has them."""


def to_text(shards: Mapping[str, LocalShard]) -> str:
    """As it stands in the metadata; what lies otherwise than by cuts and copies is left out."""
    names: dict[SavedLayout, list[str]] = {}
    for name, shard in shards.items():
        placements = tuple(map(_text, shard.placements))
        if all(placements):
            names.setdefault(SavedLayout(_dimensions(shard.mesh), placements), []).append(name)
    tree = [[layout.dimensions, layout.placements, some] for layout, some in names.items()]
    return json.dumps(tree, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> Mapping[str, SavedLayout]:
    """Layouts by the tensors' names; none in a snapshot of before they were kept.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("layouts"):
        return {
            name: SavedLayout(None if dimensions is None else tuple(dimensions), tuple(placements))
            for dimensions, placements, names in json.loads(metadata.get(KEY, "[]"))
            for name in names
        }


def rebuild(
    name: str,
    layout: SavedLayout,
    part: torch.Tensor,
    piece: TensorShard | None,
    live: DTensorLayouts,
) -> tuple[LocalShard, torch.Tensor]:
    """Return the layout on a mesh of the live state, and the local part.

    ``piece`` is what the snapshot has of it; None: it is a whole tensor, which is cut.

    Raises:
        IncompatibleState: the live state has no such mesh.
    """
    fitting = (
        shard.mesh
        for shard in (*live.exact.values(), *live.parameters.entries.values())
        if len(shard.placements) == len(layout.placements)
        and _dimensions(shard.mesh) == layout.dimensions
    )
    mesh = next(fitting, None)
    if mesh is None:
        raise errors.IncompatibleState(
            f"{name} was saved as a DTensor over a mesh of {len(layout.placements)} dimensions, "
            f"named {layout.dimensions}; this script's state has no DTensor over such a mesh. Give "
            "the state the optimizer or module itself, or restore it with the mesh that saved it"
        )
    shape = piece.shape if piece else tuple(part.shape)
    placements = tuple(_placement(axis, layout, mesh) for axis in range(len(layout.placements)))
    sizes, offsets = local_box(shape, mesh, placements)
    if piece is None:
        for axis, (begin, size) in enumerate(zip(offsets, sizes, strict=True)):
            part = part.narrow(axis, begin, size)
    stride = strides.contiguous_strides(shape)
    return LocalShard(
        mesh, placements, stride, TensorShard(shape, offsets), sizes
    ), part.contiguous()


def _text(placement: Any) -> str:
    letters = {"Replicate": "R", "Shard": "S", "_StridedShard": "X"}
    letter = letters.get(type(placement).__name__, "")
    return f"{letter}{placement.dim}" if letter in ("S", "X") else letter


def _placement(axis: int, layout: SavedLayout, mesh: Any) -> Any:
    kinds = importlib.import_module(f"{torch_module().__name__}.placement_types")
    letter, dimension = layout.placements[axis][0], layout.placements[axis][1:]
    if letter == "R":
        return kinds.Replicate()
    if letter == "S":
        return kinds.Shard(int(dimension))
    again = range(axis + 1, len(layout.placements))
    later = (mesh.shape[i] for i in again if layout.placements[i][1:] == dimension)
    return kinds._StridedShard(int(dimension), split_factor=math.prod(later))  # noqa: SLF001


def _dimensions(mesh: Any) -> tuple[str, ...] | None:
    names = mesh.mesh_dim_names
    return None if names is None else tuple(names)
