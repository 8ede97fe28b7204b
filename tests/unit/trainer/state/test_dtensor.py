# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor a rank holds by its layout, and what is not taken for that part."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from rover_kf import errors
from rover_kf.checkpoint.format import tensor_layout
from rover_kf.checkpoint.format.tensor_layout import TensorShard
from rover_kf.checkpoint.resharding.prefix_index import index_by_prefix
from rover_kf.trainer.state import dtensor, dtensor_layouts, flatten
from tests.support.training.single_process_mesh import own_mesh

pytestmark = pytest.mark.torch


@dataclasses.dataclass(frozen=True)
class _Mesh:
    """As far as the place of a part goes."""

    shape: tuple[int, ...]
    here: tuple[int, ...]
    device_type: str = "cpu"

    def get_coordinate(self) -> tuple[int, ...]:
        return self.here


def _held(rows: int, counts: tuple[int, int], here: tuple[int, int]) -> torch.Tensor:
    """Rows that a rank has when tensor parallel has cut them first and FSDP2 what it left."""
    found = torch.arange(rows)
    for count, place in zip(reversed(counts), reversed(here), strict=True):
        parts = found.chunk(count)
        found = parts[place] if place < len(parts) else found[:0]
    return found


@pytest.mark.parametrize("data", range(1, 9))
@pytest.mark.parametrize("tensor", range(1, 9))
def test_rows_that_two_ways_have_cut(data, tensor):
    """FSDP2 over tensor parallel, also where neither divides the rows evenly: vocabularies of
    50,257 and 128,257, and up to 40 rows."""
    for rows in (*range(41), 32_001, 50_257, 128_257):
        placements = (_StridedShard(0, split_factor=tensor), Shard(0))
        for here in torch.cartesian_prod(torch.arange(data), torch.arange(tensor)).tolist():
            mesh = _Mesh((data, tensor), tuple(here))
            sizes, offsets = dtensor.local_box((rows, 4), mesh, placements)
            held = _held(rows, (data, tensor), tuple(here))
            assert sizes == (len(held), 4)
            assert not len(held) or offsets == (held[0].item(), 0)


def test_copies_of_such_rows_lie_alike():
    """A mesh that replicates as well (HSDP) leaves the place as it is."""
    placements = (Replicate(), _StridedShard(0, split_factor=2), Shard(0))
    mesh = _Mesh((2, 3, 2), (1, 2, 0))
    held = _held(7, (3, 2), (2, 0))
    assert dtensor.local_box((7,), mesh, placements)[0] == (len(held),)


SHARD = dtensor.LocalShard(
    _Mesh((2,), (1,)), (Shard(0),), (3, 1), TensorShard((4, 3), (2, 0)), (2, 3)
)


@pytest.mark.parametrize(
    "kept",
    [TensorShard((4, 3), (0, 0)), TensorShard((8, 3), (2, 0)), None],
    ids=["another part", "of another tensor", "a whole tensor"],
)
def test_a_part_of_the_right_shape_may_be_another_one(kept):
    """As where the mesh was made anew with other neighbours: its values would be in the wrong
    place."""
    with pytest.raises(errors.IncompatibleState, match="Was the mesh changed"):
        SHARD.to_dtensor("w", torch.zeros(2, 3), kept)


def test_what_an_optimizer_keeps_whole_is_no_part():
    """A counter of one element beside a bias of which a rank holds one element."""
    bias = dtensor.LocalShard(_Mesh((2,), (1,)), (Shard(0),), (1,), TensorShard((2,), (1,)), (1,))
    found = dtensor.DTensorLayouts({}, index_by_prefix({"optimizer.state.0.": bias}))
    one = torch.zeros(1)
    assert found.layout_for("optimizer.state.0.step", one, None) is None
    assert found.layout_for("optimizer.state.0.exp_avg", one, TensorShard((2,), (1,))) is bias


def test_what_an_optimizer_keeps_of_its_ranks_rows_alone_is_its_own():
    """Optimizers that work on the local part keep plain tensors of it. Each rank has others, which
    to storage must not go as shares of one tensor; a count of steps is the same everywhere."""
    with own_mesh() as mesh:
        model = fully_shard(torch.nn.Linear(3, 2), mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters())
        for parameter in model.parameters():
            moments = {"rows": torch.ones(2), "blocks": [torch.ones(4)]}
            optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
        found = flatten.flatten({"model": model, "optimizer": optimizer})
    assert set(json.loads(found.metadata[tensor_layout.LAYOUT_KEY])["own"]) == {
        f"optimizer.state.{index}.{name}" for index in (0, 1) for name in ("rows", "blocks.0")
    }


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in pieces"])
def test_parameters_that_hooks_rename_are_the_same_on_all_ranks(cut):
    """As where activations are computed again: the state dict has other names than the module. All
    ranks wrote all of them to storage, and nobody compared them."""
    inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model = torch.nn.Sequential(checkpoint_wrapper(inner), torch.nn.Linear(4, 2))
    buffers = {f"model.0.1.{name}" for name, _ in inner[1].named_buffers()}
    with own_mesh() as mesh:
        found = flatten.flatten({"model": fully_shard(model, mesh=mesh) if cut else model})
    assert set(json.loads(found.metadata[tensor_layout.LAYOUT_KEY])["own"]) == buffers
    assert dtensor_layouts.KEY not in found.metadata
    assert "model.0.0.weight" in found.tensors
