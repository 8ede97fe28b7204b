# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""DTensors (FSDP2, tensor parallel): the part that this rank holds, and a part made one again.

Whatever needs torch.distributed.tensor looks whether the script has loaded it: a script that has
not has no DTensor, and need not wait for the import.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rover_kf import errors
from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format.tensor_layout import TensorShard
from rover_kf.checkpoint.resharding.prefix_index import PrefixIndex, index_by_prefix
from rover_kf.checkpoint.resharding.requested_boxes import TensorBox, group_by_box

_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")
"""The public one, and where it was before torch 2.5."""


@dataclasses.dataclass(frozen=True, slots=True)
class LocalShard:
    """A live DTensor's layout and the part of it that is here."""

    mesh: Any
    placements: tuple[Any, ...]
    stride: tuple[int, ...]
    piece: TensorShard
    sizes: tuple[int, ...]
    """Of the part that is here."""

    def has_layout_of(self, other: LocalShard) -> bool:
        """Whether the other one's layout is known with this one's."""
        mine, others = (
            (shard.mesh, shard.placements, shard.piece.shape) for shard in (self, other)
        )
        return mine == others

    def to_dtensor(self, name: str, part: torch.Tensor, piece: TensorShard | None) -> torch.Tensor:
        """Return the restored part as a DTensor of this layout.

        ``piece`` is what the snapshot has of it; None: it is a whole tensor.

        Raises:
            IncompatibleState: it is another part.
        """
        whole, begins = _shape_and_offsets(part, piece)
        here = (self.piece.shape, self.piece.offsets, self.sizes)
        if (whole, begins if part.numel() else here[1], tuple(part.shape)) != here:
            raise errors.IncompatibleState(
                f"{name} came as a part of shape {tuple(part.shape)} of {whole}, which begins at "
                f"{begins}; this rank holds {self.sizes} of {self.piece.shape}, from "
                f"{self.piece.offsets}. Was the mesh changed at the same number of ranks? Restore "
                "it with the mesh that saved it, or with another number of ranks"
            )
        return torch_module().DTensor.from_local(  # type: ignore[no-any-return] # found at run time
            part.to(self.mesh.device_type),
            self.mesh,
            self.placements,
            run_check=False,
            shape=torch.Size(self.piece.shape),
            stride=self.stride,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class DTensorLayouts:
    """All DTensors of a live state, by their names in a snapshot."""

    exact: Mapping[str, LocalShard]
    parameters: PrefixIndex[LocalShard]
    """By the begin of the names of what an optimizer keeps of a parameter."""

    def requested_boxes(self) -> tuple[RequestedBoxes, ...]:
        """What to ask for at restore."""
        return group_by_box(_boxes_of(self.exact), _boxes_of(self.parameters.entries))

    def are_on_host(self) -> bool:
        """Whether no part is on a device."""
        found = (*self.exact.values(), *self.parameters.entries.values())
        return all(shard.mesh.device_type == "cpu" for shard in found)

    def layout_for(
        self, name: str, part: torch.Tensor, piece: TensorShard | None
    ) -> LocalShard | None:
        """Return the layout of a restored tensor; None: it is a plain tensor.

        ``piece`` is what the snapshot has of it; None: it is a whole tensor.
        """
        if self is NO_DTENSORS:
            return None
        found = self.exact.get(name)
        if found is not None:
            return found
        whole, _ = _shape_and_offsets(part, piece)
        fitting = (shard for shard in self.parameters.matches(name) if shard.piece.shape == whole)
        return next(fitting, None) if part.ndim else None


def _shape_and_offsets(
    part: torch.Tensor, piece: TensorShard | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (piece.shape, piece.offsets) if piece else (tuple(part.shape), (0,) * part.ndim)


NO_DTENSORS = DTensorLayouts({}, index_by_prefix({}))
"""Of a state without DTensors."""


def local_shard_of(
    value: torch.Tensor, path: str, cache: dict[object, LocalShard]
) -> LocalShard | None:
    """Return the layout of a DTensor; None for any other tensor.

    ``cache`` has layouts by their identity: most tensors of a large model have one layout.

    Raises:
        UnsupportedState: it holds partial sums, which are no part of a tensor, or what it holds is
            not where its layout says.
    """
    module = torch_module()
    if module is None or not isinstance(value, module.DTensor):
        return None
    layout = (layout_of(value), value.stride())
    shard = cache.get(layout)
    if shard is None:
        shard = cache[layout] = _shard(value, path)
    held = tuple(local_part(value).shape)
    if held != shard.sizes:
        raise errors.UnsupportedState(
            f"state{path} is a DTensor of shape {shard.piece.shape} whose part on this rank has "
            f"shape {held}; by its layout {shard.placements} it is {shard.sizes}. Such a layout "
            "cannot be stored: choose a mesh that divides the tensor evenly"
        )
    return shard


def _shard(value: Any, path: str) -> LocalShard:
    placements = tuple(value.placements)
    if any(placement.is_partial() for placement in placements):
        raise errors.UnsupportedState(f"state{path} is a DTensor of partial sums; reduce it first")
    shape, mesh = tuple(value.shape), value.device_mesh
    sizes, offsets = local_box(shape, mesh, placements)
    here = mesh.get_coordinate()
    copies = [
        place
        for place, placement in zip(here or (1,), placements, strict=False)
        if placement.is_replicate() or here is None
    ]
    piece = TensorShard(shape, offsets, copy=sum(copies))
    return LocalShard(mesh, placements, tuple(value.stride()), piece, sizes)


def local_part(value: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a DTensor; any other tensor itself."""
    module = torch_module()
    if module is not None and isinstance(value, module.DTensor):
        local: torch.Tensor = value.to_local()
        return local
    return value


def dtensor_class() -> type[torch.Tensor] | None:
    """DTensor, if the script has loaded it."""
    module = torch_module()
    return None if module is None else module.DTensor


def layout_of(value: Any) -> object:
    """What a DTensor's part says of the whole; equal where the part is the same one."""
    return value.shape, value.placements, value.device_mesh


def _boxes_of(shards: Mapping[str, LocalShard]) -> dict[str, TensorBox]:
    return {n: TensorBox(s.piece.shape, s.piece.offsets, s.sizes) for n, s in shards.items()}


def torch_module() -> Any:
    """Of torch, with DTensor, if the script has loaded it."""
    return next((sys.modules[name] for name in _MODULES if name in sys.modules), None)


def local_box(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and offsets of the part that is here; what torch's own checkpoints compute it with."""
    here = mesh.get_coordinate()
    if here is not None and any(map(_is_strided, placements)):
        return _strided_box(shape, mesh.shape, here, placements)
    found = importlib.import_module(f"{torch_module().__name__}._utils")
    sizes, offsets = found.compute_local_shape_and_global_offset(shape, mesh, placements)
    # torch puts the offset of an empty part where it likes.
    inside = (min(begin, whole) for begin, whole in zip(offsets, shape, strict=True))
    return tuple(sizes), tuple(inside)


def _is_strided(placement: Any) -> bool:
    return type(placement).__name__ == "_StridedShard"


def _strided_box(
    shape: tuple[int, ...],
    counts: Sequence[int],
    coordinate: Sequence[int],
    placements: tuple[Any, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and offsets where FSDP2 has cut what tensor parallel had cut before.

    Torch 2.15 itself gets it wrong where a dimension is not divided evenly: one rank is said to
    hold a row that another one has.
    """
    sizes, offsets = list(shape), [0] * len(shape)
    axes = range(len(placements))
    plain = [axis for axis in axes if not _is_strided(placements[axis])]
    strided = [axis for axis in reversed(axes) if _is_strided(placements[axis])]
    for axis in (*plain, *strided):
        dimension = getattr(placements[axis], "dim", None)
        if dimension is not None:
            width = -(-sizes[dimension] // counts[axis])
            begin = min(width * coordinate[axis], sizes[dimension])
            offsets[dimension] += begin
            sizes[dimension] = min(width, sizes[dimension] - begin)
    return tuple(sizes), tuple(offsets)
