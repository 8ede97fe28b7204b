# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Waits between failures: bounded, never before the first of a row, the same whoever adds up."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.coordinator_state import FailureStreak
from rover_kf.elastic.rendezvous import restart_budget
from rover_kf.elastic.rendezvous.restart_budget import RestartBudget

rows = st.builds(FailureStreak, st.integers(0, 99), st.integers(0, 2000), st.integers(-1, 99))
rounds = st.tuples(st.none() | st.integers(0, 50), st.floats(0, 200, allow_nan=False))
longest = st.floats(0, 3600, allow_nan=False)
spent = st.dictionaries(st.integers(1, 9), st.sampled_from(["", "crashed", "error"]))


@settings(deadline=None)
@given(rows, longest)
def test_a_wait_is_bounded(row, most):
    """By the policy, from above; the first failure of a row waits for nothing."""
    seconds = restart_budget.backoff_seconds(row, most)
    assert 0 <= seconds <= most
    assert row.length > 1 or seconds == 0
    assert restart_budget.backoff_seconds(FailureStreak(1, row.length + 1), most) >= seconds


@settings(deadline=None)
@given(st.lists(rounds, max_size=40), longest)
def test_rows(course, most):
    """A row goes on while rounds are short and bring no new step; reports that come twice change
    nothing. What all waits of a row come to is less than as many times the longest."""
    row, best, expected = FailureStreak(), -1, 0
    for number, (step, seconds) in enumerate(course, 1):
        row = restart_budget.extend_streak(row, number, step=step, seconds=seconds)
        assert restart_budget.extend_streak(row, number, step=99, seconds=999.0) == row
        new = step is not None and step > best
        expected = 1 if new or seconds >= restart_budget.STABLE_SECONDS else expected + 1
        best = max(best, -1 if step is None else step)
        assert (row.round, row.length, row.best_step) == (number, expected, best)
    waits = [
        restart_budget.backoff_seconds(FailureStreak(1, length), most)
        for length in range(row.length + 1)
    ]
    assert all(later >= earlier for earlier, later in itertools.pairwise(waits))


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=5), st.randoms())
def test_copies_in_any_order(copies, chance):
    """Of what several coordinators knew the newest stands, however often each is told."""
    found = FailureStreak()
    told = [*copies, *copies]
    chance.shuffle(told)
    for one in told:
        found = restart_budget.newest_streak(found, one)
    assert found.round == max(one.round for one in copies)


@settings(deadline=None)
@given(spent, spent, st.dictionaries(st.sampled_from(["crashed", "error"]), st.integers(0, 3)))
def test_budgets_of_copies(ours, theirs, by_kind):
    """Nothing that was spent comes back, told again it costs nothing, and more than allowed is
    always said, of the total and of each kind."""
    limits = tuple(sorted(by_kind.items()))
    budget = RestartBudget(3, limits, ours).merge_spent(theirs)
    assert set(budget.spent) == {*ours, *theirs}
    assert budget.merge_spent(theirs).merge_spent(ours) == budget
    counts = [sum(kind == one for kind in budget.spent.values()) for one, _ in limits]
    over = any(count > allowed for count, (_, allowed) in zip(counts, limits, strict=True))
    assert bool(budget.exceeded_reason) == (over or len(budget.spent) > 3)
