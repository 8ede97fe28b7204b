# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Leased data on the whole path, simulated: each slot counts once in the weights that survive."""

from __future__ import annotations

import collections
import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated.leased_data import SimulatedData
from tests.support.simulated.shared_model import SimulatedShared

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ)
CALM = (
    *("send", "send", "send", "send", "deliver", "deliver", "deliver", "deliver", "deliver"),
    *("double", "lose", "prefetch", "prefetch", "step", "step", "step", "step", "fail"),
    *("leave_loop", "save", "pass_time"),
)
"""What a ledger keeps right by itself."""
TIDY = (
    *(name for name in CALM * 5 if name not in {"double", "deliver"}),
    *("deliver_next",) * 25,
    "replace_coordinator",
)
WILD = (*CALM * 5, "crash", "lose_coordinator")


MANY_CRASHES = (*CALM * 3, "crash")
LIVES = range(860, 920)
"""Seeds."""
SHARED = (*CALM * 5, "crash")


def lives(
    names: tuple[str, ...],
    seconds: float | None,
    examples: int,
    kind: type[SimulatedData] = SimulatedData,
) -> collections.Counter[str]:
    """Jobs to which this happens in any order; each is checked slot by slot at its end."""
    counts: collections.Counter[str] = collections.Counter()

    @settings(EXAMPLES, max_examples=examples)
    @given(
        st.integers(1, 120),
        st.integers(1, 9),
        st.integers(1, 3),
        st.integers(1, 5),
        st.binary(min_size=1600, max_size=1700),
    )
    def live(size: int, shard: int, epochs: int, batch: int, choices: bytes) -> None:
        job = kind(size, shard, epochs, batch, seconds)
        for operation, number in zip(choices[::2], choices[1::2], strict=False):
            job.act(operation, number, names)
        if names is not WILD and names is not SHARED:
            assert job.judged == 0
        job.finish()
        job.check()
        counts.update(job.counts)
        counts.update(judged=job.judged, rounds=job.round, aside=len(job.aside))

    live()
    print(f"{sum(counts[name] for name in {*names})} operations: {dict(counts)}")
    return counts


def test_each_slot_counts_once():
    """50,000 operations: crashes, rollbacks, other sizes of the world, lost coordinators, and
    messages that are lost, doubled and late."""
    counts = lives(WILD, None, 60)
    assert sum(counts[name] for name in {*WILD}) >= 40_000
    assert counts["rounds"] > 200
    assert counts["lose_coordinator"] > 100


def test_slots_that_were_handed_on_count_once():
    """Leases that expire while their slots are being read: two ranks bring the same."""
    counts = lives(WILD, 1.0, 40)
    assert counts["judged"] > 0


def test_a_ledger_lends_nothing_twice():
    """Without any loss of processes the ranks' own judgement finds nothing to put right."""
    counts = lives(CALM, None, 30)
    assert counts["aside"] > 0


def test_a_new_coordinator_lends_nothing_that_is_held():
    """It waits until all ranks have told; none brings what another one has used."""
    counts = lives(TIDY, None, 15)
    assert counts["replace_coordinator"] > 50


def test_slots_of_a_shared_model_count_at_least_once():
    """Of processes that do not wait for each other: none is lost, and no more count twice than
    workers that crashed had been lent."""
    counts = lives(SHARED, 1000.0, 20, SimulatedShared)
    assert counts["crash"] > 50
    assert 0 < counts["repeats"] <= counts["bound"]


def test_no_late_message_exceeds_the_bound_of_a_shared_model():
    """Short lives with many crashes, and messages that come late and twice. Where a registration of
    a process that is dead displaced its successor, number 907 repeated six slots and not none."""
    repeats = 0
    for seed in LIVES:
        drawn = random.Random(seed)
        job = SimulatedShared(
            drawn.randint(1, 120),
            drawn.randint(1, 9),
            drawn.randint(1, 3),
            drawn.randint(1, 5),
            1e3,
        )
        for _ in range(drawn.randint(50, 500)):
            name, number = drawn.choice(MANY_CRASHES), drawn.randrange(256)
            if name == "crash":
                # Others than the first: with it the model goes back, and the bound is large.
                number = drawn.randint(1, 2)
            getattr(job, name)(number)
        job.finish()
        job.check()
        repeats += job.counts["repeats"]
    assert repeats > len(LIVES)
    print(f"{repeats} slots repeated in {len(LIVES)} lives")
