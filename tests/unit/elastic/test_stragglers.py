# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who is slow by itself, in windows of steps."""

from __future__ import annotations

import random

from rover_kf.api.samples import StepReport, StepSample
from rover_kf.elastic.stragglers import (
    WINDOW_STEPS,
    StragglerDetector,
    StragglerRank,
    slow_ranks,
)


def told(watch, rank, *own, number=1):
    samples = tuple(StepSample(1, 0.0, 1.0, rank_local_seconds=seconds) for seconds in own)
    return watch.on_report(StepReport(rank, 4, number, samples))


def windows(watch, *times):
    """One window a tuple, a rank's time each; who was told in which."""
    found = []
    for number, one in enumerate(times):
        for rank, seconds in enumerate(one):
            new = told(watch, rank, *[seconds] * WINDOW_STEPS)
            found += [(number, straggler.rank) for straggler in new]
    return found


def test_three_of_four_windows():
    """One slow window is nothing, nor are two; the third is told, once."""
    even, slow_one = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.6, 1.0)
    assert windows(StragglerDetector(1, 4), slow_one, even, even, even, slow_one, slow_one) == []
    assert windows(StragglerDetector(1, 4), slow_one, even, slow_one, slow_one, slow_one) == [
        (3, 2)
    ]
    assert windows(StragglerDetector(1, 4), *[even] * 20) == []


def test_the_rule_holds_no_more():
    """Who was slow in three of four windows is a straggler until it is so in two of the last."""
    watch, held = StragglerDetector(1, 4), []
    even, slow_one = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.6, 1.0)
    for one in (slow_one, slow_one, slow_one, even, even, slow_one, slow_one, slow_one):
        windows(watch, one)
        held.append([straggler.rank for straggler in watch.current])
    assert held == [[], [], [2], [2], [], [], [], [2]]


def test_half_of_two():
    """Of two ranks one can be slow; of one none. A rank as slow as one and a half is not."""
    assert slow_ranks({0: 1.0, 1: 1.6}) == (StragglerRank(1, 1.6, 1.0),)
    assert slow_ranks({0: 1.0, 1: 1.5}) == ()
    assert slow_ranks({0: 1.0}) == ()


def test_single_slow_steps_do_not_count():
    """A window's median decides: evaluations, saves and first steps are few."""
    watch, chance = StragglerDetector(1, 4), random.Random(7)
    for _ in range(10 * WINDOW_STEPS):
        for rank in range(4):
            own = chance.uniform(0.9, 1.1) if chance.random() < 0.7 else chance.uniform(5, 50)
            assert told(watch, rank, own) == ()


def test_nothing_measured_nothing_told():
    """Steps without a measure fill no window; a rank that tells none keeps all from closing; nor
    does another round's."""
    watch = StragglerDetector(1, 4)
    slow_one = (1.0, 1.0, 1.6, 0.0)
    assert windows(watch, *[slow_one] * 8) == []
    assert told(watch, 3, *[1.0] * 4 * WINDOW_STEPS, number=2) == ()
    found = told(watch, 3, *[1.0] * 4 * WINDOW_STEPS)
    assert [one.rank for one in found] == [2]
