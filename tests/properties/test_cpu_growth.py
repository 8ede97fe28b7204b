# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CPU limits: raised only where one is held back, never lowered, never above bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.faults.limit_raises import CpuLimitRaises, CpuUse
from rover_kf.elastic.resources.cpu_limit import (
    LEAST_GAIN,
    STARVED,
    STARVING,
    THROTTLED,
    CpuRaiseLimits,
    TrainingRate,
    decide_raise,
)

modest = settings(max_examples=100, deadline=None)
limits = st.integers(1, 64_000)
shares = st.floats(0, 1)
rates = st.floats(0.001, 1e4)
uses = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(CpuUse, st.floats(0, 64), st.floats(0.001, 64), shares, st.just(60.0)),
)
states = st.builds(
    CpuLimitRaises, st.just("ps"), st.integers(0, 5), st.floats(0, 1e6), rates, st.integers(0, 2)
)
paces = st.builds(TrainingRate, rates, st.integers(0, 2), shares)
bounds = st.builds(CpuRaiseLimits, st.none() | limits, st.none() | limits)


@modest
@given(uses, states, limits, bounds, paces)
def test_a_limit_only_grows_and_within_bounds(seen, state, limit, most, pace):
    """Whatever is told: a new limit is higher and may be had, and somebody was held back at it."""
    growth = decide_raise(seen, state, limit, most, training_rate=pace, now=5.0)
    least = STARVING if pace.wait_fraction > STARVED else THROTTLED
    assert all(use.throttled >= least for use in growth.throttled_pods.values())
    if growth.limit is None:
        assert growth.state == state
        assert bool(growth.denial_reason) == bool(growth.throttled_pods)
        return
    assert growth.throttled_pods
    assert not growth.denial_reason
    assert limit < growth.limit <= most.maximum
    assert (growth.state.raises, growth.state.rate) == (state.raises + 1, pace.rate)
    same = state.raises and state.nodes == pace.nodes
    assert not same or pace.rate >= state.rate * (1 + LEAST_GAIN)


@modest
@given(limits, states, shares, paces)
def test_what_was_seen_at_an_earlier_limit_counts_for_nothing(limit, state, share, pace):
    """A resize takes a moment, and a window before it has another limit."""
    old = {"a": CpuUse(limit / 1000, limit / 2000, share, 60.0)}
    assert (
        decide_raise(
            old, state, limit, CpuRaiseLimits(), training_rate=pace, now=5.0
        ).throttled_pods
        == {}
    )


def test_how_far_goes_by_how_long_it_was_held_back():
    """Twice, four times where it was most of the time; limits are of whole hundredths."""
    state = CpuLimitRaises("ps")

    def wanted(throttled, limit=100, waits=0.0):
        use = {"a": CpuUse(limit / 1000, limit / 1000, throttled, 60.0)}
        return decide_raise(
            use,
            state,
            limit,
            CpuRaiseLimits(),
            training_rate=TrainingRate(1.0, wait_fraction=waits),
            now=5.0,
        ).limit

    assert [wanted(share) for share in (0.2, 0.3, 0.7, 0.8)] == [None, 200, 200, 400]
    assert wanted(0.3, 33) == 70
    assert [wanted(share, waits=0.5) for share in (0.09, 0.1)] == [None, 200]
