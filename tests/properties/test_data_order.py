# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every sample in exactly one of the steps that survive, whatever fails and however many train."""

from __future__ import annotations

import collections
import fractions
import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.data_sharding.batches import Batches
from rover_kf.data_sharding.permutation import MAX_SIZE, Permutation
from rover_kf.trainer.data.elastic_loader import ElasticDataLoader
from rover_kf.trainer.data.epoch_plan import AT_ONCE
from rover_kf.trainer.data.shuffle import Shuffled
from tests.support.training.numbered_samples import Numbered

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ)
seeds = st.integers(-(1 << 70), 1 << 70)


@EXAMPLES
@given(st.integers(1, 1500), seeds, st.integers(0, 1 << 40))
def test_an_order_has_every_sample_once(size, seed, epoch):
    """Of any size; the places one by one are those all at once."""
    order = Permutation(size, seed, epoch)
    found = [order.value_at(position) for position in range(size)]
    assert sorted(found) == list(range(size))
    assert Shuffled(size, seed, epoch).samples_at(torch.arange(size)).tolist() == found


@EXAMPLES
@given(st.integers(1, MAX_SIZE), seeds, st.data())
def test_any_place_of_a_huge_order_is_at_hand(size, seed, data):
    """In no memory to speak of; different places are different samples, in both ways to compute."""
    order = Permutation(size, seed, 0)
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=40))
    found = [order.value_at(place) for place in places]
    assert len(set(found)) == len(places)
    assert all(0 <= sample < size for sample in found)
    assert Shuffled(size, seed, 0).samples_at(torch.tensor(places)).tolist() == found


def test_orders_look_random():
    """Where a sample comes to stand, and which follows which, is spread evenly over 2,000 orders:
    chi-square of 16 x 16 cells, 225 degrees of freedom, five deviations."""
    size, orders = 16, 2000
    places, followers = collections.Counter(), collections.Counter()
    for epoch in range(orders):
        order = Permutation(size, 7, epoch)
        found = [order.value_at(place) for place in range(size)]
        places.update(enumerate(found))
        followers.update(itertools.pairwise(found))
    for counts, cells, total in (
        (places, size * size, orders * size),
        (followers, size * (size - 1), orders * (size - 1)),
    ):
        expected = total / cells
        chi = sum((counts[cell] - expected) ** 2 / expected for cell in counts)
        chi += (cells - len(counts)) * expected
        print(f"chi-square {chi:.0f} of {cells} cells")
        assert chi < cells + 5 * (2 * cells) ** 0.5


@EXAMPLES
@given(
    st.integers(1, 400), st.integers(1, 60), st.integers(1, 9), st.integers(1, 70), st.booleans()
)
def test_ranks_cut_a_batch_evenly_and_whole(samples, batch, world, most, drop_last):
    """All ranks have as many parts, none too large; together they are the batch's samples in their
    order; the weights make the mean over ranks the mean over samples, exactly."""
    if batch < world or (drop_last and samples < batch):
        with pytest.raises(errors.InputError):
            Batches(samples, 0, batch, 0, world, most, drop_last)
        return
    ranks = [Batches(samples, 0, batch, rank, world, most, drop_last) for rank in range(world)]
    used = 0
    for step in range(ranks[0].steps):
        size = ranks[0].end_of(step) - used
        parts = [rank.parts_of(size) for rank in ranks]
        assert len({len(of_rank) for of_rank in parts}) == 1
        taken = _check(parts, size, most)
        marks = [size * rank // world for rank in range(world + 1)]
        assert taken == [end - begin for begin, end in itertools.pairwise(marks)]
        assert max(taken) - min(taken) <= 1
        used += size
    assert used == (samples // batch * batch if drop_last else samples)


def _check(parts, size, most) -> list[int]:
    """What ranks compute is the batch, once and in order; samples that each takes."""
    world = len(parts)
    real = [part for of_rank in parts for part in of_rank if part.weight]
    assert [part.begin for part in real] == [0, *(part.end for part in real[:-1])]
    assert real[-1].end == size
    assert all(0 < part.samples <= most for of_rank in parts for part in of_rank)
    for part in real:
        of_mean = fractions.Fraction(part.weight).limit_denominator(10**6) / world
        assert of_mean == fractions.Fraction(part.samples, size)
    assert [[part.last for part in of_rank] for of_rank in parts] == [
        [False] * (len(of_rank) - 1) + [True] for of_rank in parts
    ]
    return [sum(part.samples for part in of_rank if part.weight) for of_rank in parts]


@settings(EXAMPLES, max_examples=60)
@given(st.integers(1, 300), st.integers(4, 40), st.integers(1, 9), st.data())
def test_lives_of_a_job(samples, batch, most, data):
    """Training that is killed at any step, rolled back to any checkpoint and goes on in a world of
    another size: the steps that survive are those of one process that nothing ever happened to."""
    epochs = data.draw(st.integers(1, 3))
    expected = _undisturbed(samples, batch, epochs)
    survived: list[list[int]] = []
    saved = _loader(samples, batch, most, 0, 1).state_dict()
    while len(survived) < len(expected):
        world = data.draw(st.integers(1, 4), label="world")
        steps = data.draw(st.integers(1, len(expected)), label="steps")
        every = data.draw(st.integers(1, 3), label="every")
        loaders = [_loader(samples, batch, most, rank, world) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(saved)
        lived: list[list[int]] = []
        for step in itertools.islice(
            zip(*(_steps(each, epochs) for each in loaders), strict=True), steps
        ):
            lived.append([sample for part in step for sample in part])
            if len(lived) % every == 0:
                states = [loader.state_dict() for loader in loaders]
                assert all(state == states[0] for state in states)
                saved, survived, lived = states[0], survived + lived, []
        # What came after the last checkpoint is lost with the processes.
        if len(survived) + len(lived) == len(expected):
            survived += lived
    assert survived == expected
    counts = collections.Counter(itertools.chain.from_iterable(survived))
    assert counts == dict.fromkeys(range(samples), epochs)


def test_orders_computed_in_blocks_are_whole():
    """More samples than are computed at once, in unequal parts."""
    count = 3 * AT_ONCE + 5
    found = [list(_steps(_loader(count, 100, 40, rank, 3), 1)) for rank in range(3)]
    assert sorted(itertools.chain(*map(itertools.chain.from_iterable, found))) == list(range(count))


def _loader(samples: int, batch: int, most: int, rank: int, world: int) -> ElasticDataLoader:
    return ElasticDataLoader(
        Numbered(samples), batch, micro_batch_size=most, seed=3, rank=rank, world_size=world
    )


def _steps(loader: ElasticDataLoader, epochs: int):
    """Samples of this rank that count, a list a step."""
    while loader.epoch < epochs:
        part: list[int] = []
        for indices in loader:
            part += indices.tolist() if loader.weight else []
            if not loader.accumulates:
                yield part
                part = []


def _undisturbed(samples: int, batch: int, epochs: int) -> list[list[int]]:
    found = []
    for epoch in range(epochs):
        order = Permutation(samples, 3, epoch)
        whole = [order.value_at(place) for place in range(samples)]
        found += [whole[begin : begin + batch] for begin in range(0, samples, batch)]
    return found
