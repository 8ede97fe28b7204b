# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The elastic data loader as a script uses it."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from rover_kf import ElasticDataLoader, errors
from rover_kf.data_sharding.permutation import Permutation
from rover_kf.trainer.step_reporter import LoaderProgress
from tests.support.training.numbered_samples import Numbered

READ_SECONDS = 0.0005


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def _loader(samples: int = 20, batch: int = 6, **changes) -> ElasticDataLoader:
    dataset = changes.pop("dataset", None) or Numbered(samples)
    return ElasticDataLoader(dataset, batch, **{"rank": 0, "world_size": 1, **changes})


def test_what_workers_fetch_ahead_is_not_done():
    """Two workers have fetched four batches when the first is trained on: the place is after that
    one, in the middle of the loop's body, and the next life has the rest in the same order."""
    loader = _loader(num_workers=2, prefetch_factor=2)
    order = Permutation(20, 0, 0)
    whole = [order.value_at(place) for place in range(20)]
    for indices in loader:
        assert indices.tolist() == whole[:6]
        assert loader.done == 6
        saved = loader.state_dict()
        break
    again = _loader()
    again.load_state_dict(saved)
    assert torch.cat(list(again)).tolist() == whole[6:]
    assert (again.epoch, again.done) == (1, 0)


def test_a_loop_that_is_left_goes_on_where_it_was():
    """The same loader, iterated again."""
    loader = _loader(shuffle=False)
    assert next(iter(loader)).tolist() == [0, 1, 2, 3, 4, 5]
    assert [len(indices) for indices in loader] == [6, 6, 2]
    assert loader.epoch == 1
    assert [len(indices) for indices in loader] == [6, 6, 6, 2]


def test_a_loop_that_takes_as_many_as_there_are_has_every_epoch():
    """It never asks for the end of one, as Lightning's does not: each second epoch had nothing."""
    loader, kept = _loader(shuffle=False), []
    for epoch in range(2):
        batches = iter(loader)
        kept.append(batches)  # what it has begun may live on
        found = [next(batches).tolist() for _ in range(len(loader))]
        assert [*itertools.chain(*found)] == [*range(20)]
        assert (loader.epoch, loader.done) == (epoch, 20)  # in the last step's body
    for _, batches in zip(range(2 * len(loader)), iter(loader), strict=False):
        assert (len(batches), loader.epoch) in {(6, 2), (2, 2)}
    del kept[:], batches
    assert (loader.epoch, loader.done) == (3, 0)
    for indices in loader:
        if len(indices) == 2:
            break
    assert (loader.epoch, loader.done) == (4, 0)


def test_another_data_loader_over_its_batches_is_refused():
    """Accelerate's prepare makes one: each restart went back to the begin of the first epoch."""
    loader = _loader()
    prepared = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
    with pytest.raises(errors.InputError, match="iterate the ElasticDataLoader itself"):
        next(iter(prepared))
    assert len([*loader]) == len(loader)


class Noise(Numbered):
    """What a worker draws for a sample."""

    def __getitem__(self, index: int) -> float:
        return torch.rand(()).item()


def test_what_the_loop_draws_is_as_without_the_loader():
    """A process that goes on in the middle of an epoch iterates once more, and DataLoader draws a
    number of torch's each time: dropout would be another one from there on. Workers draw other
    numbers in each epoch, the same ones for the same seed, and from a generator of the script's
    where it gives one."""
    torch.manual_seed(1)
    alone = torch.rand(4)
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        loader = _loader(batch=20, dataset=Noise(20), num_workers=1)
        drawn = [torch.cat([batch, torch.rand(1)]) for _ in range(2) for batch in loader]
        again = _loader()
        again.load_state_dict({**_loader().state_dict(), "done": 6})
        assert torch.cat([torch.rand(1) for _ in itertools.islice(again, 2)]).equal(alone[2:])
        assert torch.stack([row[-1] for row in drawn]).equal(alone[:2])
        found += [row[:-1] for row in drawn]
    assert found[0].equal(found[2])
    assert found[1].equal(found[3])
    assert not found[0].equal(found[1])
    given = torch.Generator().manual_seed(7)
    next(iter(_loader(generator=given)))
    assert not given.get_state().equal(torch.Generator().manual_seed(7).get_state())


def test_the_end_of_an_epoch_has_no_batch_and_then_the_next_one_begins():
    """A checkpoint of the last step, with and without a batch that is left out."""
    for drop_last, count in ((False, 4), (True, 3)):
        loader = _loader(drop_last=drop_last)
        states = [loader.state_dict() for _ in loader]
        assert len(states) == len(loader) == count
        again = _loader(drop_last=drop_last)
        again.load_state_dict(states[-1])
        assert (again.epoch, again.done, [*again]) == (0, states[-1]["done"], [])
        assert (again.epoch, again.done) == (1, 0)


def test_a_smaller_world_accumulates():
    """Eight samples a step, two at once: four ranks in one part, one rank in four, of which the
    last alone ends the step; a place within a step is before the step."""
    for world, parts in ((4, 1), (2, 2), (1, 4)):
        loader = _loader(16, 8, micro_batch_size=2, world_size=world)
        found = [(len(i), loader.weight, loader.accumulates, loader.done) for i in loader]
        one = [(2, 1 / parts, True, 0)] * (parts - 1) + [(2, 1 / parts, False, 8)]
        two = [(2, 1 / parts, True, 8)] * (parts - 1) + [(2, 1 / parts, False, 16)]
        assert found == one + two
        assert len(loader) == 2 * parts


def test_ranks_without_samples_take_part():
    """The last batch has one sample for three ranks: two compute it too, with weight 0."""
    loaders = [_loader(7, 3, rank=rank, world_size=3, shuffle=False) for rank in range(3)]
    found = [[(i.tolist(), loader.weight) for i in loader][-1] for loader in loaders]
    assert found == [([6], 0.0), ([6], 0.0), ([6], 3.0)]


def test_another_batch_size_goes_on_at_the_same_place(caplog):
    """Larger steps from there on; the seed is the checkpoint's, which is told."""
    loader = _loader(seed=4)
    next(iter(loader))
    again = _loader(batch=14, seed=5)
    again.load_state_dict(loader.state_dict())
    assert "the checkpoint's seed 4" in caplog.text
    order = Permutation(20, 4, 0)
    (rest,) = again
    assert rest.tolist() == [order.value_at(place) for place in range(6, 20)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 0}, "empty"),
        ({"batch": 0}, "batch of 0"),
        ({"batch": -3}, "batch of -3"),
        ({"micro_batch_size": -1}, "-1 at once"),
        ({"batch": 2, "world_size": 3}, "maxReplicas"),
        ({"rank": 3, "world_size": 3}, "rank 3 of 3"),
        ({"samples": 5, "drop_last": True}, "drop_last"),
        ({"in_order": False}, "in order"),
    ],
)
def test_bad_numbers_are_refused(changes, words):
    """Before training, with what to do."""
    with pytest.raises(errors.InputError, match=words):
        _loader(**changes)


def test_a_data_set_without_length_is_refused():
    """By its name."""
    with pytest.raises(errors.InputError, match="Endless has no length"):
        ElasticDataLoader(Endless(), 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 21}, "samples=20"),
        ({"fingerprint": "b"}, "fingerprint=''"),
        ({"shuffle": False}, "shuffle=True"),
    ],
)
def test_a_place_in_other_data_is_refused(changes, words):
    """A checkpoint of other samples, or of another order of them."""
    with pytest.raises(errors.CheckpointError, match=words):
        _loader(**changes).load_state_dict(_loader().state_dict())


@pytest.mark.parametrize("costs", [[], [5, 7], [5, 7, 9]])
def test_a_place_with_what_samples_cost_is_gone_on_from(costs):
    """Earlier versions kept it, of one rank after the other; no step's samples depended on it."""
    loader = _loader(world_size=2)
    next(iter(loader))
    saved = loader.state_dict()
    assert "costs" not in saved
    again = [_loader(rank=rank, world_size=2) for rank in range(2)]
    for rank in again:
        rank.load_state_dict({**saved, "costs": costs})
        assert rank.state_dict() == saved
    order = Permutation(20, 0, 0)
    steps = [torch.cat(parts).tolist() for parts in zip(*again, strict=True)]
    assert [*itertools.chain(*steps)] == [order.value_at(place) for place in range(6, 20)]


def test_a_newer_state_is_refused():
    """With the way out."""
    with pytest.raises(errors.CheckpointError, match="version 2"):
        _loader().load_state_dict(_loader().state_dict() | {"version": 2})


def test_places_outside_an_order_are_refused():
    """Sizes that have no order, too."""
    with pytest.raises(errors.InputError, match="order of 0 samples"):
        Permutation(0, 1, 1)
    for place in (-1, 5):
        with pytest.raises(errors.InputError, match=f"position {place}"):
            Permutation(5, 1, 1).value_at(place)


def test_what_the_loop_waits_for_is_told_once():
    """Reading in the loop's own process counts, what the loop computes meanwhile does not."""

    class Slow(Numbered):
        def __getitem__(self, index):
            begun = time.perf_counter()
            while time.perf_counter() - begun < READ_SECONDS:
                pass
            return super().__getitem__(index)

    loader = ElasticDataLoader(Slow(64), 16, rank=0, world_size=1)
    places = LoaderProgress()
    places.watch_state({"model": torch.nn.Linear(1, 1), "loader": loader})
    begun, computed = time.perf_counter(), 0.0
    for _ in loader:
        pause = time.perf_counter()
        while time.perf_counter() - pause < 10 * READ_SECONDS:
            pass
        computed += time.perf_counter() - pause
    whole = time.perf_counter() - begun
    waited = places.take_waited()
    assert 64 * READ_SECONDS <= waited <= whole - computed
    assert places.take_waited() == 0
