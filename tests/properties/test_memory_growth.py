# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory limits after kills: raised once a kill, never lowered, never above what may be had."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_kf.api.faults.memory_raises import MemoryGrowth, MemoryKill
from rover_kf.elastic.resources.memory_limit import (
    MARGIN,
    MIB,
    MOST_RAISES,
    SETTLE_SECONDS,
    Bounds,
    decide,
    grown,
)

modest = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

amounts = st.integers(16 * MIB, 1 << 40)
bounds = st.builds(Bounds, amounts, st.none() | amounts)
kills = st.lists(
    st.builds(MemoryKill, st.sampled_from("abc"), st.floats(0, 1e6), st.just(0) | amounts),
    max_size=6,
)
states = st.builds(
    MemoryGrowth,
    st.just("worker"),
    st.integers(0, MOST_RAISES + 1),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)


@modest
@given(kills, states, amounts, bounds, st.floats(0, 2e6))
def test_a_limit_only_grows_and_within_bounds(found, state, limit, most, now):
    """Whatever is told in whatever order: a new limit is higher and may be had; else nothing."""
    growth = decide(found, state, limit, most, now)
    if growth.limit is None:
        assert growth.state.raises == state.raises
        return
    assert found
    assert limit < growth.limit <= min(most.policy, most.node or most.policy)
    assert growth.limit > max([0, *(kill.limit for kill in found)])
    assert growth.state.raises == state.raises + 1 <= MOST_RAISES
    assert not growth.refusal


@modest
@given(kills, states, amounts, bounds, st.floats(0, 1e6))
def test_the_same_kills_raise_once(found, state, limit, most, now):
    """Told again at each look, also by ranks that are late: nothing more follows from them."""
    later = SETTLE_SECONDS * 0.9
    first = decide(found, state, limit, most, now)
    if first.limit is None:
        again = decide(found, first.state, limit, most, now + later)
        assert again.limit is None
        return
    late = [dataclasses.replace(kill, pod="late", at=kill.at + 1) for kill in found]
    second = decide([*found, *late], first.state, first.limit, most, now + later)
    assert (second.limit, second.refusal) == (None, "")
    third = decide([*found, *late], second.state, first.limit, most, now + later + 1e6)
    assert (third.limit, third.refusal) == (None, "")


@modest
@given(amounts, st.booleans())
def test_a_program_that_grows_is_followed_to_the_cap(limit, known):
    """Each kill at the limit of its time raises it, four times at most; then it is refused."""
    state, now, seen = MemoryGrowth("worker"), 1000.0, [limit]
    while True:
        kill = MemoryKill("a", now, limit if known else 0)
        growth = decide([kill], state, limit, Bounds(1 << 60), now)
        if growth.limit is None:
            break
        state, limit, now = growth.state, growth.limit, now + 60
        seen.append(limit)
    assert len(seen) == MOST_RAISES + 1
    assert f"raised {MOST_RAISES} times" in growth.refusal
    assert seen[1] >= max(seen[0] * 1.5, seen[0] * 1.2 + MARGIN)
    assert all(after == 2 * before for before, after in itertools.pairwise(seen[1:]))


def test_sixteen_gibibytes_reach_sixty_four_in_three():
    """As the rule was chosen: 16, 24, 48, 96 GiB."""
    gib = 1 << 30
    assert [grown(16 * gib, 0), grown(24 * gib, 1), grown(48 * gib, 2)] == [
        24 * gib,
        48 * gib,
        96 * gib,
    ]


def test_refusals_say_what_is_reached():
    """The cap of the policy, or the largest node."""
    kill = [MemoryKill("a", 1.0, 1 << 30)]
    state = MemoryGrowth("worker")
    assert "memory.max" in decide(kill, state, 1 << 30, Bounds(1 << 30), 5.0).refusal
    assert "no node" in decide(kill, state, 1 << 30, Bounds(1 << 40, 1 << 29), 5.0).refusal
