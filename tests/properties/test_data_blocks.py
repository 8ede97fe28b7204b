# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Orders of samples that lie in blocks: each sample once, read by blocks, at any world size."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import ElasticDataLoader, errors
from rover_kf.trainer.data.shuffle import BlockInterleave, BlockShuffled

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ)
lanes = st.builds(BlockInterleave, st.integers(1, 40), st.integers(1, 30))


class Blocked:
    """Sample i is i; it lies in a block."""

    def __init__(self, blocks) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(self.blocks)

    def __getitem__(self, index: int) -> int:
        return index


class Short(Blocked):
    """Its blocks have one sample more than it says."""

    def __len__(self) -> int:
        return super().__len__() - 1


@settings(EXAMPLES, max_examples=40)
@given(st.lists(st.integers(0, 400) | st.integers(4000, 6000), min_size=1, max_size=8), lanes)
def test_an_order_of_blocks_has_every_sample_once(sizes, over):
    """Of blocks of any sizes, over any lanes; a place alone is what it is among all."""
    if not sum(sizes):
        return
    order = BlockShuffled(sizes, over, seed=3, epoch=1)
    whole = order.samples_at(torch.arange(sum(sizes)))
    assert whole.sort().values.equal(torch.arange(sum(sizes)))
    for place in range(0, sum(sizes), 997):
        assert order.samples_at(torch.tensor([place])).tolist() == [whole[place]]


@settings(EXAMPLES, max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(6, 20), st.data())
def test_batches_are_alike_at_every_size_of_the_world(sizes, batch, data):
    """Also after lives with other ranks, other batches and lanes: the order is the first's."""
    alone = _loader(sizes, batch)
    whole = torch.cat(list(alone)).tolist()
    assert sorted(whole) == list(range(sum(sizes)))
    seen: list[int] = []
    state = _loader(sizes, batch).state_dict()
    while len(seen) < sum(sizes):
        world = data.draw(st.integers(1, 6))
        steps = data.draw(st.integers(1, 9))
        now = data.draw(st.sampled_from([batch, 3 * batch]))
        over = {"world_size": world, "lanes": data.draw(st.sampled_from([8, 3]))}
        loaders = [_loader(sizes, now, rank=rank, **over) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
        for parts in itertools.islice(zip(*loaders, strict=True), steps):
            seen += [
                sample
                for loader, part in zip(loaders, parts, strict=True)
                for sample in (part.tolist() if loader.weight else [])
            ]
        state = loaders[0].state_dict()
    assert seen == whole


def test_a_rank_reads_few_blocks_at_a_time():
    """48 blocks of 5,000 samples, eight lanes: a rank of four has two blocks in hand, and reads
    each to its end; two workers share them."""
    sizes, steps = [5000] * 48, 40
    for rank in (0, 3):
        ordered = _loader(sizes, 256, rank=rank, world_size=4).ordered()
        parts = [torch.tensor(part) // 5000 for part in ordered]
        touched = [
            len(torch.cat(parts[at : at + steps]).unique())
            for at in range(0, len(parts) - steps, steps)
        ]
        assert max(touched) <= 4
        assert sum(len(part.unique()) for part in parts) / len(parts) < 2.1
    for_two = _loader(sizes, 256, rank=1, world_size=4, num_workers=2).ordered()
    blocks = [{sample // 5000 for sample in part} for part in itertools.islice(for_two, 40)]
    assert len(set().union(*blocks[::2])) <= 3
    assert not set().union(*blocks[::2]) & set().union(*blocks[1::2])


def test_epochs_differ_and_lanes_may_be_left_out():
    """A sample stands anywhere in the next epoch; with lanes=0 batches come from all blocks."""
    first, second = (list(loader) for loader in itertools.repeat(_loader([5000] * 20, 100), 2))
    same = sum(bool(a.equal(b)) for a, b in zip(first, second, strict=True))
    assert same == 0
    spread = [len((part // 5000).unique()) for part in _loader([5000] * 20, 100, lanes=0)]
    assert sum(spread) / len(spread) > 18


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: _loader([3, 4], 2, lanes=-1), "-1 lanes"),
        (lambda: ElasticDataLoader(Short([3, 4]), 2), "6 samples and blocks of 7"),
    ],
)
def test_blocks_that_cannot_be_are_refused(made, words):
    """Before training."""
    with pytest.raises(errors.InputError, match=words):
        made()


def test_a_place_in_other_blocks_is_refused(caplog):
    """As many samples, cut otherwise; other lanes go on with the checkpoint's."""
    state = _loader([3, 4], 2).state_dict()
    with pytest.raises(errors.CheckpointError, match="blocks"):
        _loader([4, 3], 2).load_state_dict(state)
    other = _loader([3, 4], 2, lanes=2)
    other.load_state_dict(state)
    assert "lanes [8, 1]" in caplog.text
    assert other.state_dict() == state


def _loader(sizes, batch, **changes) -> ElasticDataLoader:
    return ElasticDataLoader(
        Blocked(sizes), batch, seed=3, **{"rank": 0, "world_size": 1, **changes}
    )
