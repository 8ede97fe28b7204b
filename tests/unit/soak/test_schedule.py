# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The soak's faults come from the seed alone, all kinds of them, and each can be made."""

from __future__ import annotations

import itertools

import pytest
from soaking import schedule


def _first(seed: int, count: int) -> list[schedule.Fault]:
    return list(itertools.islice(schedule.faults(seed), count))


def test_a_seed_names_its_faults():
    """The same seed gives the same faults, another one others."""
    assert _first(7, 100) == _first(7, 100) != _first(8, 100)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_before_any_comes_again(seed):
    """Each stretch as long as the list of kinds holds all of them."""
    found = [fault.kind for fault in _first(seed, 10 * len(schedule.KINDS))]
    for begin in range(0, len(found), len(schedule.KINDS)):
        assert sorted(found[begin : begin + len(schedule.KINDS)]) == sorted(schedule.KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_can_be_made(seed):
    """It hits a replica that is there, changes the number to another one, keeps to its times."""
    nodes = schedule.FEWEST
    for fault in _first(seed, 200):
        assert (fault.index == -1) == (fault.kind in schedule.RESIZES)
        assert fault.index < nodes
        assert (fault.nodes != nodes) == (fault.kind in schedule.RESIZES)
        assert schedule.SHORTEST_PAUSE <= fault.pause <= schedule.LONGEST_PAUSE
        assert (fault.seconds > 0) == fault.kind.startswith("stop_")
        nodes = fault.nodes
        assert schedule.FEWEST <= nodes <= schedule.MOST


def test_steps_of_an_hour():
    """Two replicas with 160 samples a second each take 5 steps of 64 a second."""
    assert schedule.steps_for(60, samples_per_second=160, global_batch=64) == 5 * 3600
