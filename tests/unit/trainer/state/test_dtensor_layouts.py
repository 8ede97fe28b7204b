# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How DTensors lay is kept of those that a new process has none of; worlds of processes are in
tests/faults/test_checkpoint_reshard.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from rover_kf import errors
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
    mesh_dim_names: tuple[str, ...] | None = None

    def get_coordinate(self) -> tuple[int, ...]:
        return self.here


def _shard(mesh: _Mesh, placements: tuple[object, ...]) -> dtensor.LocalShard:
    return dtensor.LocalShard(mesh, placements, (3, 1), TensorShard((8, 3), (0, 0)), (8, 3))


def _live(mesh: _Mesh) -> dtensor.DTensorLayouts:
    return dtensor.DTensorLayouts(
        {"weight": _shard(mesh, (Replicate(),) * len(mesh.shape))}, index_by_prefix({})
    )


def test_a_whole_tensor_is_cut_as_it_lay():
    """As after a change of size: the names of the mesh's dimensions say which one is meant."""
    mesh = _Mesh((2, 2, 2), (1, 0, 1), ("copy", "data", "tensor"))
    placements = (Replicate(), _StridedShard(0, split_factor=2), Shard(0))
    found = dtensor_layouts.read(
        {dtensor_layouts.KEY: dtensor_layouts.to_text({"best.w": _shard(mesh, placements)})}
    )
    whole = torch.arange(24).view(8, 3)
    shard, part = dtensor_layouts.rebuild("best.w", found["best.w"], whole, None, _live(mesh))
    assert shard.placements == placements
    assert torch.equal(part, whole[4:6])
    other = _Mesh((2, 2, 2), (1, 0, 1), ("copy", "data", "expert"))
    with pytest.raises(errors.IncompatibleState, match="the optimizer or module itself"):
        dtensor_layouts.rebuild("best.w", found["best.w"], whole, None, _live(other))


def test_what_is_known_otherwise_is_not_kept():
    """A module's and its optimizer's lie as the live ones do; what has no name of ours is left out,
    and what cannot be read is damage."""
    with own_mesh() as mesh:
        model = fully_shard(torch.nn.Linear(3, 2), mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        plain = flatten.flatten({"model": model, "optimizer": optimizer})
        assert dtensor_layouts.KEY not in plain.metadata
        row = DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
        optimizer.state[model.weight]["row"] = row
        kept = {"model": model, "optimizer": optimizer, "best": {"w": model.weight.detach()}}
        found = dtensor_layouts.read(flatten.flatten(kept).metadata)
    assert set(found) == {"optimizer.state.0.row", "best.w"}
    assert dtensor_layouts.to_text({"w": _shard(_Mesh((2,), (0,)), (Partial(),))}) == "[]"
    assert dtensor_layouts.read({}) == {}
    with pytest.raises(errors.CorruptSnapshot):
        dtensor_layouts.read({dtensor_layouts.KEY: '[["data"]]'})
