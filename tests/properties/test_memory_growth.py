# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory limits after kills: raised once a kill, never lowered, never above what may be had."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_kf.api.faults.limit_raises import MemoryLimitRaises, OomKill
from rover_kf.elastic.resources.memory_limit import (
    MARGIN,
    MAX_RAISES,
    MIB,
    SETTLE_SECONDS,
    MemoryRaiseLimits,
    after_oom,
    next_limit,
)

modest = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

amounts = st.integers(16 * MIB, 1 << 40)
bounds = st.builds(MemoryRaiseLimits, amounts, st.none() | amounts)
kills = st.lists(
    st.builds(OomKill, st.sampled_from("abc"), st.floats(0, 1e6), st.just(0) | amounts),
    max_size=6,
)
states = st.builds(
    MemoryLimitRaises,
    st.just("worker"),
    st.integers(0, MAX_RAISES + 1),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)


@modest
@given(kills, states, amounts, bounds, st.floats(0, 2e6))
def test_a_limit_only_grows_and_within_bounds(found, state, limit, most, now):
    """Whatever is told in whatever order: a new limit is higher and may be had; else nothing."""
    growth = after_oom(found, state, limit, most, now)
    if growth.limit is None:
        assert growth.state.raises == state.raises
        return
    assert found
    assert limit < growth.limit <= min(most.policy, most.node or most.policy)
    assert growth.limit > max([0, *(kill.limit for kill in found)])
    assert growth.state.raises == state.raises + 1 <= MAX_RAISES
    assert not growth.denial_reason


@modest
@given(kills, states, amounts, bounds, st.floats(0, 1e6))
def test_the_same_kills_raise_once(found, state, limit, most, now):
    """Told again at each look, also by ranks that are late: nothing more follows from them."""
    later = SETTLE_SECONDS * 0.9
    first = after_oom(found, state, limit, most, now)
    if first.limit is None:
        again = after_oom(found, first.state, limit, most, now + later)
        assert again.limit is None
        return
    late = [dataclasses.replace(kill, pod="late", killed_at=kill.killed_at + 1) for kill in found]
    second = after_oom([*found, *late], first.state, first.limit, most, now + later)
    assert (second.limit, second.denial_reason) == (None, "")
    third = after_oom([*found, *late], second.state, first.limit, most, now + later + 1e6)
    assert (third.limit, third.denial_reason) == (None, "")


@modest
@given(amounts, st.booleans())
def test_a_program_that_grows_is_followed_to_the_cap(limit, known):
    """Each kill at the limit of its time raises it, four times at most; then it is refused."""
    state, now, seen = MemoryLimitRaises("worker"), 1000.0, [limit]
    while True:
        kill = OomKill("a", now, limit if known else 0)
        growth = after_oom([kill], state, limit, MemoryRaiseLimits(1 << 60), now)
        if growth.limit is None:
            break
        state, limit, now = growth.state, growth.limit, now + 60
        seen.append(limit)
    assert len(seen) == MAX_RAISES + 1
    assert f"raised {MAX_RAISES} times" in growth.denial_reason
    assert seen[1] >= max(seen[0] * 1.5, seen[0] * 1.2 + MARGIN)
    assert all(after == 2 * before for before, after in itertools.pairwise(seen[1:]))


def test_sixteen_gibibytes_reach_sixty_four_in_three():
    """As the rule was chosen: 16, 24, 48, 96 GiB."""
    gib = 1 << 30
    assert [next_limit(16 * gib, 0), next_limit(24 * gib, 1), next_limit(48 * gib, 2)] == [
        24 * gib,
        48 * gib,
        96 * gib,
    ]


def test_refusals_say_what_is_reached():
    """The cap of the policy, or the largest node."""
    kill = [OomKill("a", 1.0, 1 << 30)]
    state = MemoryLimitRaises("worker")
    assert (
        "memory.max"
        in after_oom(kill, state, 1 << 30, MemoryRaiseLimits(1 << 30), 5.0).denial_reason
    )
    assert (
        "no node"
        in after_oom(kill, state, 1 << 30, MemoryRaiseLimits(1 << 40, 1 << 29), 5.0).denial_reason
    )
