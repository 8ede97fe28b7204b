# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When speeds are exchanged and count: the same on all ranks, never for what a worker has."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.sharding.batches import Batches
from rover_kf.sharding.cadence import Cadence
from rover_kf.trainer.balance import decided, known

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ)
costs = st.lists(st.integers(0, 10**12), max_size=6)


@EXAMPLES
@given(st.integers(0, 64), st.integers(1, 200))
def test_every_rank_knows_what_a_step_is_cut_by_before_it_is_drawn(ahead, steps):
    """What was told after a step counts from one on that no worker was given by then, in the order
    in which it was told; each change is foreseen by the step before, and there is no other."""
    cadence = Cadence(ahead)
    told = [ended for ended in range(steps) if cadence.exchanges(ended)]
    counts = [cadence.counts_from(ended) for ended in told]
    assert counts == sorted(set(counts))
    for ended, first in zip(told, counts, strict=True):
        assert first > cadence.known_until(ended - 1), "drawn when fewer steps had ended"
        assert cadence.known_until(ended) >= first - 1, "no step is left out between"
    changes, step = [], 0
    while step <= max(counts, default=0):
        step = cadence.next_change(step)
        changes.append(step)
    assert changes[: len(counts)] == counts


@EXAMPLES
@given(costs, st.integers(1, 6), st.data())
def test_speeds_of_another_world_are_forgotten(kept, world, data):
    """A world begins with what a checkpoint knew only if it has as many ranks and all had measured;
    otherwise with equal parts. Whatever it begins with, its cuts are whole."""
    begin = known(kept, world)
    assert begin == (tuple(kept) if len(kept) == world and 0 not in kept else ())
    size = data.draw(st.integers(world, 300))
    whole = Batches(size, 0, size, 0, world, size, alike=False)
    found = data.draw(st.lists(st.integers(0, 10**12), min_size=world, max_size=world))
    cut_by = decided(whole, begin, tuple(found), 0.03)
    assert cut_by in (begin, tuple(found))
    taken = whole.shares_of(size, cut_by)
    assert sum(taken) == size
    assert min(taken) >= 1
    if cut_by != begin and begin:
        was = [
            cost * share for cost, share in zip(found, whole.shares_of(size, begin), strict=True)
        ]
        now = [cost * share for cost, share in zip(found, taken, strict=True)]
        assert max(now) < max(was)
