# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the planner of torch.distributed.checkpoint names, as a snapshot has it; and back.

The state of such a snapshot has one entry, a dict by the planner's names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlanner, WriteItem

from rover_kf import errors
from rover_kf.checkpoint.format import plain_data
from rover_kf.checkpoint.format.snapshot import STATE_KEY, Snapshot
from rover_kf.checkpoint.format.tensor_layout import Box, TensorLayout, TensorShard
from rover_kf.trainer.state import flatten as states

KEY = "dcp"
"""Of the state's one entry."""


def value_of(item: WriteItem, planner: SavePlanner) -> torch.Tensor | bytes:
    """An item's tensor, this rank's part; or what the planner has encoded.

    Raises:
        UnsupportedState: the tensor cannot be stored; the message has its name.
    """
    found = planner.resolve_data(item)
    if isinstance(found, torch.Tensor):
        told = box_of(item)[0].sizes
        if tuple(found.shape) != told:
            raise errors.UnsupportedState(
                f"the part of {item.index.fqn} on this rank has shape {tuple(found.shape)}; torch "
                f"computes {told} from its layout. Such a layout cannot be stored: choose a mesh "
                "that divides the tensor evenly"
            )
        return states.checked_tensor(found, f"[{item.index.fqn!r}]")
    return found.getvalue()


def piece_of(item: WriteItem, copy: int) -> TensorShard:
    """Describe an item's tensor for the snapshot; the rank of ``copy`` 0 writes it to storage."""
    box, shape = box_of(item)
    return TensorShard(shape, box.offsets, copy)


def box_of(item: WriteItem) -> tuple[Box, tuple[int, ...]]:
    """Which part of a tensor an item is, and the whole one's shape."""
    data = item.tensor_data
    assert data is not None  # noqa: S101 - of tensors' items alone
    # torch puts the offset of an empty part where it likes.
    inside = (min(begin, whole) for begin, whole in zip(data.chunk.offsets, data.size, strict=True))
    return Box(tuple(inside), tuple(data.chunk.sizes)), tuple(data.size)


def boxes_of(state_dict: dict[str, Any]) -> Iterator[tuple[str, tuple[Box, tuple[int, ...]]]]:
    """What this rank needs of which tensor, by the names that the planner gives them."""
    live = {
        key: value.state_dict() if states.is_stateful(value) else value
        for key, value in state_dict.items()
    }
    planner = DefaultSavePlanner()
    planner.set_up_planner(live, is_coordinator=False)
    for item in planner.create_local_plan().items:
        if item.tensor_data is not None:
            yield item.index.fqn, box_of(item)


def to_text(values: Mapping[str, torch.Tensor | bytes]) -> str:
    """The state as a snapshot's metadata has it; a tensor's name is the planner's."""
    pairs = [
        [name, plain_data.encode(value) if isinstance(value, bytes) else {"T": name}]
        for name, value in values.items()
    ]
    return json.dumps({"d": [[KEY, {"d": pairs}]]}, separators=(",", ":"))


def check(name: str, needed: Box, held: Box) -> None:
    """Make sure that the planner leaves no element alone.

    Raises:
        CheckpointError: the slot holds another box than this rank needs.
    """
    if not needed.is_empty and needed.overlap(held) != needed:
        raise errors.CheckpointError(
            f"{name} came as {held}; this rank needs {needed}. Was the mesh changed at the same "
            "number of ranks? Restore it with the mesh that saved it, or with another number of "
            "ranks"
        )


def slice_of(tensor: torch.Tensor, item: ReadItem) -> torch.Tensor:
    """The box that the planner wants of what the slot holds, counted from where that begins."""
    for axis, begin in enumerate(item.storage_offsets):
        tensor = tensor.narrow(axis, begin, item.lengths[axis])
    return tensor


def unflatten(snapshot: Snapshot) -> dict[str, Any]:
    """What the planner has named: bytes, or None for a tensor.

    Raises:
        CheckpointError: another kind of script has saved it.
    """
    tree = plain_data.decode(json.loads(snapshot.metadata[STATE_KEY]), lambda _: None)
    if not isinstance(tree.get(KEY), dict):
        raise errors.IncompatibleState(
            f"the job's state has {sorted(map(str, tree))}; it was saved by Checkpointer.save, and "
            "Checkpointer.restore brings it back"
        )
    inside: dict[str, Any] = tree[KEY]
    return inside


def describe(
    name: str, value: bytes | None, snapshot: Snapshot, tensor_layout: TensorLayout
) -> TensorStorageMetadata | BytesStorageMetadata:
    """What a slot holds under a name, as the planner wants it told."""
    if value is not None:
        return BytesStorageMetadata()
    entry = snapshot.tensors[name].entry
    box = tensor_layout.box(entry)
    return TensorStorageMetadata(
        TensorProperties(dtype=states.dtype_of(entry.dtype)),
        torch.Size(tensor_layout.full_shape(entry)),
        [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))],
    )
