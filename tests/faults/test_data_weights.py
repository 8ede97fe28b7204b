# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real data-parallel training whose ranks may have unequal parts of a step.

The batches, bit by bit, are those of one process, through changes of the world's size; so are the
weights, but for the rounding of sums.
"""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
import torch

from rover_kf.data_sharding.permutation import Permutation
from tests.support.process_pool.rank_server import serving
from tests.support.training.weighted_ranks import BATCH, SAMPLES, SEED, Points, model

SCRIPT = pathlib.Path(sys.modules[Points.__module__].__file__)
STEPS = SAMPLES // BATCH


@pytest.fixture(scope="module")
def ranks():
    """Forks worlds."""
    with serving(SCRIPT) as running:
        yield running


def test_worlds_of_any_size_train_as_one_process_does(ranks, tmp_path):
    """Four ranks that accumulate; then two with workers that fetch ahead; then three, whose parts
    of a step differ."""
    first = _train(ranks, tmp_path / "4", 4, 24, micro_batch_size=3)
    assert [len(of_rank["steps"][0]) for of_rank in first] == [BATCH // 4] * 4
    second = _train(ranks, tmp_path / "2", 2, 10, after=tmp_path / "4", num_workers=2)
    assert [len(of_rank["steps"][0]) for of_rank in second] == [BATCH // 2] * 2
    third = _train(ranks, tmp_path / "3", 3, STEPS, after=tmp_path / "2")
    assert [len(of_rank["steps"][0]) for of_rank in third] == [10, 11, 11]
    assert all(of_rank["state"]["epoch"] == 1 for of_rank in third)
    order = Permutation(SAMPLES, SEED, 0)
    seen = [sample for world in (first, second, third) for sample in _in_order(world)]
    assert seen == [order.value_at(place) for place in range(SAMPLES)]
    ended = torch.load(tmp_path / "3" / "0.pt")
    for name, value in _alone(order).items():
        torch.testing.assert_close(ended[name], value, rtol=1e-9, atol=1e-9)


def _train(ranks, folder, world, steps, after=None, **options) -> list[dict]:
    """What each rank wrote."""
    folder.mkdir()
    asked = {"folder": str(folder), "steps": steps, "options": options}
    if after is not None:
        state = json.loads((after / "0.json").read_text())["state"]
        asked |= {"state": state, "weights": str(after / "0.pt")}
    ranks.start([{"RANK": str(r), "WORLD_SIZE": str(world)} for r in range(world)], **asked)
    assert ranks.wait() == [0] * world
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    assert all(of_rank["state"] == found[0]["state"] for of_rank in found)
    return found


def _in_order(world: list[dict]) -> list[int]:
    """Samples of all steps, each rank's after those of the ranks before it."""
    return [
        sample
        for step in zip(*(of_rank["steps"] for of_rank in world), strict=True)
        for part in step
        for sample in part
    ]


def _alone(order: Permutation) -> dict[str, torch.Tensor]:
    """Weights of one process that computes each batch at once."""
    alone, data = model(), Points()
    optimizer = torch.optim.SGD(alone.parameters(), 0.05)
    for begin in range(0, SAMPLES, BATCH):
        points = torch.stack([data[order.value_at(begin + at)][1] for at in range(BATCH)])
        (alone(points) - points.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return alone.state_dict()
