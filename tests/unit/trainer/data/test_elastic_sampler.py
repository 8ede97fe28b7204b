# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The elastic sampler below torch's DataLoader and torchdata's StatefulDataLoader."""

from __future__ import annotations

import itertools

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from rover_kf import ElasticDataLoader, ElasticSampler, errors
from rover_kf.data_sharding.permutation import Permutation
from tests.support.training.numbered_samples import Numbered

SAMPLES, BATCH = 50, 12
WHOLE = [Permutation(SAMPLES, 5, 0).value_at(place) for place in range(SAMPLES)]


def _sampler(rank: int = 0, world: int = 1, **changes) -> ElasticSampler:
    given = {"batch_size": BATCH, "seed": 5, "rank": rank, "world_size": world, **changes}
    return ElasticSampler(Numbered(given.pop("samples", SAMPLES)), **given)


def _steps(loaders, count: int | None = None) -> list[int]:
    """Samples of some steps, rank after rank."""
    steps = itertools.islice(zip(*loaders, strict=True), count)
    return [sample for step in steps for part in step for sample in part.tolist()]


def test_steps_are_those_of_the_elastic_loader():
    """In worlds of three sizes; a rank has as many samples as it says."""
    alone = ElasticDataLoader(Numbered(SAMPLES), BATCH, seed=5, rank=0, world_size=1)
    assert _steps([alone]) == WHOLE
    for world in (1, 2, 3):
        samplers = [_sampler(rank, world) for rank in range(world)]
        loaders = [DataLoader(Numbered(SAMPLES), s.rank_batch_size, sampler=s) for s in samplers]
        assert [sum(map(len, loader)) for loader in loaders] == list(map(len, samplers))
        repeated = WHOLE[48:49] if world == 3 else []
        assert _steps(loaders) == WHOLE[:48] + repeated + WHOLE[48:]


def test_what_is_told_is_done():
    """Workers have fetched ahead; the next life, in another world, has the rest."""
    sampler = _sampler()
    loader = DataLoader(Numbered(SAMPLES), sampler.rank_batch_size, sampler=sampler, num_workers=2)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        sampler.advance()
    assert sampler.done == 24
    samplers = [_sampler(rank, 2) for rank in range(2)]
    for each in samplers:
        each.load_state_dict(sampler.state_dict())
        each.set_epoch(0)
        assert len(each) == 13
    loaders = [
        DataLoader(Numbered(SAMPLES), each.rank_batch_size, sampler=each) for each in samplers
    ]
    assert _steps(loaders) == WHOLE[24:]
    samplers[0].advance(2)
    assert (samplers[0].epoch, samplers[0].done) == (0, 48)
    samplers[0].advance()
    assert (samplers[0].epoch, samplers[0].done) == (1, 0)
    samplers[0].set_epoch(7)
    assert samplers[0].epoch == 7
    assert len(samplers[0]) == 25


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_counts_what_it_gave(workers):
    """Its state in the middle of an epoch goes on in a world of another size."""
    first = [_stateful(rank, 2, workers)[0] for rank in range(2)]
    seen = _steps(first, 2)
    assert seen == WHOLE[:24]
    state = first[0].state_dict()
    then = [_stateful(rank, 3, workers)[0] for rank in range(3)]
    for loader in then:
        loader.load_state_dict(state)
    assert _steps(then, 2) == WHOLE[24:48]
    last, sampler = _stateful(0, 1, workers)
    last.load_state_dict(then[2].state_dict())
    assert _steps([last]) == WHOLE[48:]
    sampler.set_epoch(1)
    order = Permutation(SAMPLES, 5, 1)
    assert _steps([last]) == [order.value_at(place) for place in range(SAMPLES)]


def _stateful(rank: int, world: int, workers: int):
    sampler = _sampler(rank, world)
    data = Numbered(SAMPLES)
    return StatefulDataLoader(
        data, sampler.rank_batch_size, sampler=sampler, num_workers=workers
    ), sampler


def test_samples_that_fill_no_batch_may_be_left_out():
    """Then all ranks have equal parts all the time."""
    samplers = [_sampler(rank, 3, drop_last=True) for rank in range(3)]
    assert list(map(len, samplers)) == [16] * 3
    assert (
        _steps([DataLoader(Numbered(SAMPLES), s.rank_batch_size, sampler=s) for s in samplers])
        == WHOLE[:48]
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world": 5}, "no equal parts"),
        ({"batch_size": 0}, "batch of 0"),
        ({"batch_size": -2}, "batch of -2"),
        ({"samples": 0}, "empty"),
        ({"lanes": -1}, "-1 lanes"),
    ],
)
def test_bad_numbers_are_refused(changes, words):
    """Before training, with what to do."""
    with pytest.raises(errors.InputError, match=words):
        _sampler(**changes)


def test_a_place_in_other_data_is_refused():
    """As the loader's."""
    with pytest.raises(errors.CheckpointError, match="samples=50"):
        _sampler(samples=51).load_state_dict(_sampler().state_dict())
