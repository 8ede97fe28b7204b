# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on about their speed; for worlds see tests/faults/test_data_balance.py."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from rover_kf import errors
from rover_kf.sharding.batches import Batches, Part
from rover_kf.trainer.balance import Balance, decided

PART = Part(0, 10, 1.0, last=True)


@pytest.fixture
def balance(tmp_path):
    """Of a world of one, whose workers fetch three parts ahead."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = torch.nn.Linear(1, 1)
    yield Balance(model, Batches(1000, 0, 10, 0, 1, 10), ahead=3), model
    dist.destroy_process_group()


def _train(made, model, steps: int) -> None:
    for _ in range(steps):
        made.give(PART)
        time.sleep(0.002)
        model(torch.ones(1)).backward()
        made.asked(PART)


def test_costs_count_from_a_step_that_nobody_has_drawn(balance):
    """One step, exchanged, for the third step after it."""
    made, model = balance
    with made.iterating(0):
        assert made.at(0) == ((), 4)
        _train(made, model, 1)
        assert made.at(3) == ((), 4)
        costs, until = made.at(4)
        assert until == 5
        assert 200_000 <= costs[0] < 1e9
    with made.iterating(0):
        assert made.at(0) == (costs, 4), "what is known holds in the next epoch"


def test_a_new_process_begins_with_what_the_checkpoint_knew(balance):
    """Of a world of the same size; what it has measured itself counts for more."""
    made, model = balance
    made.recall([5, 7])
    with made.iterating(0):
        assert made.at(0) == ((), 4), "of a world of two"
        _train(made, model, 1)
        measured, _ = made.at(4)
    assert measured != ()
    made.recall([5])
    with made.iterating(0):
        assert made.at(0) == (measured, 4)
    again = Balance(model, Batches(1000, 0, 10, 0, 1, 10), ahead=3)
    again.recall([5])
    with again.iterating(0):
        assert again.at(0) == ((5,), 4)


def test_small_gains_change_no_cut():
    """Another batch size has its own price; what was not measured decides nothing."""
    whole = Batches(1000, 0, 100, 0, 2, 100)
    assert decided(whole, (), (1000, 0), 0.03) == ()
    assert decided(whole, (), (1000, 1010), 0.03) == (1000, 1010)
    assert decided(whole, (1000, 1010), (1000, 1060), 0.03) == (1000, 1010)
    assert decided(whole, (1000, 1010), (1000, 1060), 0.01) == (1000, 1060)
    assert decided(whole, (1000, 1010), (1000, 1100), 0.03) == (1000, 1100)
    assert decided(whole, (1000, 1100), (0, 0), 0.03) == (1000, 1100)


def test_what_is_drawn_too_far_ahead_is_an_error(balance):
    """Ranks could not agree on it: never different cuts."""
    made, _ = balance
    with made.iterating(0), pytest.raises(errors.RoverError, match="more than 3 ahead"):
        made.at(5)
