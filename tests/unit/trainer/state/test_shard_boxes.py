# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Plain tensors that an optimizer keeps of a parameter's local part are saved with their box."""

from __future__ import annotations

import json

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from rover_kf import errors
from rover_kf.trainer.state import flatten, shard_boxes
from rover_kf.trainer.state.shard_boxes import ShardBox
from tests.support.training.single_process_mesh import own_mesh

pytestmark = pytest.mark.torch

NAME = "optimizer.state.0.m"


def _sharded(mesh) -> dict[str, object]:
    model = fully_shard(torch.nn.Linear(2, 3, bias=False), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (weight,) = model.parameters()
    optimizer.state[weight] = {
        "m": torch.ones_like(weight.to_local()),
        "count": torch.ones(1),
        "step": torch.tensor(1.0),
    }
    return {"model": model, "optimizer": optimizer}


def test_a_tensor_of_the_local_part_has_its_box():
    """A single number has none, whatever its dimensions."""
    with own_mesh() as mesh:
        saved = shard_boxes.read(flatten.flatten(_sharded(mesh)).metadata)
    assert saved == {NAME: ShardBox((3, 2), (0, 0), (3, 2))}


@pytest.mark.parametrize(
    ("box", "fits"),
    [
        (ShardBox((3, 2), (0, 0), (3, 2)), True),
        (ShardBox((3, 2), (0, 0), (2, 2)), False),
        (ShardBox((3, 2), (2, 0), (1, 2)), False),
        (ShardBox((6, 2), (0, 0), (3, 2)), False),
    ],
)
def test_it_comes_back_to_the_same_box_alone(box, fits):
    """Also where the shapes agree; the optimizer of another name is not concerned."""
    saved = shard_boxes.read({shard_boxes.KEY: shard_boxes.to_text({NAME: box})})
    with own_mesh() as mesh:
        live = flatten.flatten(_sharded(mesh)).dtensors
    shard_boxes.check_boxes(saved, "other.", live)
    if fits:
        shard_boxes.check_boxes(saved, "optimizer.", live)
        return
    with pytest.raises(errors.IncompatibleState, match=rf"{NAME} is a plain tensor"):
        shard_boxes.check_boxes(saved, "optimizer.", live)


@pytest.mark.parametrize(("sizes", "fits"), [((3, 2), True), ((2, 2), False)])
def test_a_plain_parameter_takes_what_is_of_a_whole_one(sizes, fits):
    """As where a sharded job goes on without shards."""
    saved = {NAME: ShardBox((3, 2), (0, 0), sizes)}
    live = flatten.flatten({"model": torch.nn.Linear(2, 3)}).dtensors
    if fits:
        shard_boxes.check_boxes(saved, "optimizer.", live)
        return
    with pytest.raises(errors.IncompatibleState, match="the whole parameter"):
        shard_boxes.check_boxes(saved, "optimizer.", live)


def test_a_state_without_such_tensors_has_no_boxes():
    """As of torch's own optimizers, whose tensors are DTensors."""
    metadata = flatten.flatten({"model": torch.nn.Linear(2, 2)}).metadata
    assert shard_boxes.KEY not in metadata
    with pytest.raises(errors.CorruptSnapshot, match="boxes"):
        shard_boxes.read({shard_boxes.KEY: json.dumps([["x"]])})
