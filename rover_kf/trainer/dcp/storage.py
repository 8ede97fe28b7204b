# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ways into the checkpoint for who calls torch.distributed.checkpoint's save and load.

::

    dcp.save(state_dict, storage_writer=Writer(checkpointer, step))
    ...
    reader = Reader(checkpointer, state_dict)
    if reader.find():
        dcp.load(state_dict, storage_reader=reader)

The planner names the tensors and says which box of which one a rank holds; the bytes go where
``Checkpointer.save`` puts them. Every rank saves all that it holds: its own memory then brings it
back without asking another. On storage each box is written once. What is no tensor stands as the
planner has encoded it, each rank's own.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.format import metrics as format_metrics
from rover_kf.checkpoint.format import tensor_layout
from rover_kf.checkpoint.format.snapshot import STATE_KEY
from rover_kf.checkpoint.format.tensor_layout import Box, TensorLayout
from rover_kf.checkpoint.resharding.requested_boxes import TensorBox, group_by_box
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.dcp import plan_items
from rover_kf.trainer.restore_client import open_slot
from rover_kf.trainer.state.flatten import FlatState
from rover_kf.trainer.state.tensor_views import tensor_views


class Writer(StorageWriter):
    """Takes a state dict into memory as one step.

    Args:
        checkpointer: of the process.
        step: that the state dict stands for.
        metrics: what was measured of it, as for ``Checkpointer.save``.

    Raises:
        InputError: a metric is no number.
    """

    def __init__(
        self, checkpointer: Checkpointer, step: int, *, metrics: Mapping[str, float] | None = None
    ) -> None:
        self._checkpointer, self._step = checkpointer, step
        self._metrics = format_metrics.to_metadata(metrics)
        self._items: tuple[WriteItem, ...] = ()

    def __reduce__(self) -> str:
        """It stays with the process whose memory it fills.

        Raises:
            UnsupportedState: always; ``dcp.async_save`` would have another process call it.
        """
        raise errors.UnsupportedState(
            "a Writer cannot go to another process; call dcp.async_save without "
            "AsyncCheckpointerType.PROCESS: its thread copies into memory, and the sidecar writes"
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is left of a save before; there is no place to name."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:  # noqa: FBT001
        """Nothing to set up: the sidecar is there."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Remember all that this rank holds, before the planner gives each tensor to one rank.

        Raises:
            UnsupportedState: the planner caches plans, or holds several boxes of one tensor.
        """
        if not getattr(plan, "usable", True):
            raise errors.UnsupportedState(
                "the planner gives a plan of an earlier save; make it without enable_plan_caching"
            )
        self._items = tuple(plan.items)
        held = [item.index.fqn for item in self._items]
        if len(set(held)) < len(held):
            twice = next(name for name in held if held.count(name) > 1)
            raise errors.UnsupportedState(
                f"{twice} has several shards on one rank; use DTensors, or give each shard a name "
                "of its own (Megatron: singleton_local_shards)"
            )
        sharded = any(item.type == WriteItemType.SHARD for item in self._items)
        return dataclasses.replace(plan, storage_data=(frozenset(held), sharded))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell all ranks whether they hold the same (DDP) or parts."""
        same = {plan.storage_data for plan in plans}
        alike = len(same) == 1 and not any(sharded for _, sharded in same)
        return [dataclasses.replace(plan, storage_data=alike) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copy everything into memory and seal it.

        Raises:
            UnsupportedState: a tensor cannot be stored; the message has its name.
            ArenaTooSmall: the state does not fit; the message has the size to set.
            SidecarUnavailable: the arena has to grow and the sidecar does not answer.
        """
        values = {item.index.fqn: plan_items.value_of(item, planner) for item in self._items}
        tensors = {name: item for name, item in values.items() if isinstance(item, torch.Tensor)}
        mine = {item.index.fqn for item in plan.items}
        pieces = {
            item.index.fqn: plan_items.piece_of(item, copy=int(item.index.fqn not in mine))
            for item in self._items
            if item.index.fqn in tensors and not plan.storage_data
        }
        metadata = {
            STATE_KEY: plan_items.to_text(values),
            # Among what torch saves of one rank for all are running figures, which differ.
            tensor_layout.LAYOUT_KEY: TensorLayout(
                shards=pieces, bit_equal=False, complete=bool(pieces)
            ).to_text(),
            **self._metrics,
        }
        self._checkpointer.save_parts(self._step, FlatState(tensors, metadata, boxes=bool(pieces)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing to do: every rank's slot is sealed, and describes itself."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No place can be named; it never takes one."""
        del checkpoint_id
        return False


class Reader(StorageReader):
    """Gives back the newest step that all ranks have in common; every rank must use one.

    Args:
        checkpointer: of the process.
        state_dict: that will be loaded; its DTensors say which boxes this rank needs.
    """

    def __init__(self, checkpointer: Checkpointer, state_dict: dict[str, Any]) -> None:
        self._checkpointer, self._state_dict = checkpointer, state_dict
        self._reply: RestoreReply | None = None
        self._boxes: dict[str, tuple[Box, tuple[int, ...]]] = {}

    def find(self) -> int:
        """The step that load will bring; 0 if there is nothing, and load would be an error.

        Raises:
            SidecarUnavailable: the sidecar does not answer.
            CheckpointError: a rank does not ask, or nothing fits this world.
        """
        if self._reply is None:
            self._boxes = dict(plan_items.boxes_of(self._state_dict))
            places = {
                name: TensorBox(shape, box.offsets, box.sizes)
                for name, (box, shape) in self._boxes.items()
            }
            self._reply = self._checkpointer.bring(group_by_box(places))
        return self._reply.step or 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is no place to name; the job's own is read."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What the slot holds, as this rank sees it.

        Raises:
            CheckpointError: there is nothing, it is another script's, or of another mesh.
            CorruptSnapshot: the slot was overwritten since ``find``.
        """
        with open_slot(self._require_reply()) as (found, _buffer):
            held = tensor_layout.read_tensor_layout(found)
            for name, (box, shape) in self._boxes.items():
                place = found.tensors.get(name)
                # What is missing or has another shape, the planner tells.
                if place is not None and held.full_shape(place.entry) == shape:
                    plan_items.check(name, box, held.box(place.entry))
            names = plan_items.unflatten(found).items()
            return Metadata(
                {name: plan_items.describe(name, item, found, held) for name, item in names}
            )

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - torch's own
        *_: Any,
        **__: Any,
    ) -> None:
        """Nothing to set up: the slot is filled."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are: each rank reads its own slot."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy out of the slot into the live tensors.

        Raises:
            CorruptSnapshot: the slot was overwritten since ``find``.
        """
        with open_slot(self._require_reply()) as (found, buffer), torch.no_grad():
            tree, tensors = plan_items.unflatten(found), tensor_views(buffer, found.tensors)
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(tree[name]))
                    continue
                target = planner.resolve_tensor(item).detach()
                target.copy_(plan_items.slice_of(tensors[name], item))
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No place can be named; it never takes one."""
        del checkpoint_id
        return False

    def _require_reply(self) -> RestoreReply:
        if not self.find() or self._reply is None:
            raise errors.CheckpointError(
                "there is nothing to load; ask find() before and begin anew if it is 0"
            )
        return self._reply
