# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The code after an epoch's loop runs once, wherever a training was stopped."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rover_kf import ElasticDataLoader, ElasticSampler
from tests.support.training.epoch_training import (
    EPOCHS,
    STEPS,
    Bits,
    Ended,
    live,
    live_by_sampler,
)
from tests.support.training.numbered_samples import Numbered

# A process that begins at an epoch's end has taken no step before the schedule's.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

LIVES = {"loader": live, "sampler": live_by_sampler}
WORLDS = (1, 2, 3, 4)


class Kills:
    """Ends a life after the save of a step."""

    def __init__(self, at: int, every: int) -> None:
        self.at, self.every = at, every
        self.saved: Bits | None = None

    def __call__(self, step: int, state: Bits) -> None:
        if step % self.every == 0:
            self.saved = state
        if step == self.at:
            raise Ended


@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("world", WORLDS)
def test_a_training_killed_at_any_step_is_the_undisturbed_one(kind, world):
    """Weights, momenta, rates, validations and samples, bit for bit, saved at each step and at
    each epoch's last alone: a restore of that one skipped the epoch's schedule and validation."""
    alive = LIVES[kind]
    calm = alive(world, None, lambda *_: None)
    assert len(calm["log"]["validations"]) == EPOCHS
    for every, at in itertools.product((1, STEPS), range(1, EPOCHS * STEPS + 1)):
        kill = Kills(at, every)
        with pytest.raises(Ended):
            alive(world, None, kill)
        assert alive(world, kill.saved, lambda *_: None) == calm, (every, at)


@settings(max_examples=10, deadline=None)
@given(
    kind=st.sampled_from(sorted(LIVES)),
    changes=st.lists(
        st.tuples(st.integers(1, EPOCHS * STEPS), st.sampled_from(WORLDS)), max_size=4
    ),
)
def test_a_training_that_is_scaled_has_each_epoch_end_once(kind, changes):
    """Stopped at steps by chance, for worlds of other sizes: as many samples, schedule steps and
    validations, and the same weights but for the rounding of sums."""
    alive = LIVES[kind]
    calm, saved = alive(1, None, lambda *_: None), None
    for at, world in sorted(changes):
        kill = Kills(at, 1)
        try:
            alive(world, saved, kill)
        except Ended:
            saved = kill.saved
    found = alive(1, saved, lambda *_: None)
    assert found["log"]["rates"] == calm["log"]["rates"]
    assert found["log"]["samples"] == calm["log"]["samples"]
    for bits in (found, calm):
        bits["values"] = [float.fromhex(text) for text in bits["values"]]
        bits["values"] += bits["log"]["validations"]
    weights = [torch.tensor(bits["values"]) for bits in (found, calm)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_the_end_that_was_restored_is_given_once():
    """No batch, then the next epoch; workers are not started for it."""
    loader = ElasticDataLoader(Numbered(20), 6, rank=0, world_size=1)
    states = [loader.state_dict() for _ in loader]
    again = ElasticDataLoader(Numbered(20), 6, num_workers=1, rank=0, world_size=1)
    again.load_state_dict(states[-1])
    assert again.state_dict() == states[-1]
    assert ([*again], again.epoch, again.done) == ([], 1, 0)
    assert torch.cat([*again]).unique().numel() == 20
    assert again.epoch == 2


def test_a_trainer_that_counts_epochs_has_no_empty_one():
    """Lightning runs the code after an epoch itself, and announces the next one by set_epoch."""
    loader = ElasticDataLoader(Numbered(20), 6, rank=0, world_size=1)
    states = [loader.state_dict() for _ in loader]
    loader.load_state_dict(states[-1])
    batches = iter(loader)
    loader.batch_sampler.sampler.set_epoch(7)
    assert (len([*batches]), loader.epoch) == (4, 2)
    loader.load_state_dict(states[1])
    loader.batch_sampler.sampler.set_epoch(7)
    assert (len([*loader]), loader.epoch) == (2, 1)


def test_a_sampler_leaves_its_epoch_when_the_next_one_begins():
    """By an iteration, a step or set_epoch; until then its state is the epoch's end."""
    for begin in (iter, ElasticSampler.advance, lambda one: one.set_epoch(1)):
        sampler = ElasticSampler(Numbered(12), 6, rank=0, world_size=1)
        sampler.advance(2)
        end = sampler.state_dict()
        assert (end["epoch"], end["done"]) == (0, 12)
        assert (sampler.epoch, sampler.done, len(sampler)) == (1, 0, 12)
        begin(sampler)
        assert sampler.state_dict()["epoch"] == 1
        sampler.load_state_dict(end)
        loader = DataLoader(Numbered(12), 6, sampler=sampler)
        assert (sampler.epoch, sampler.done, len(sampler), [*loader]) == (0, 12, 0, [])
        assert (sampler.epoch, len([*loader])) == (1, 2)
