# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Promises of the decision for every job: bounds, pace, no flapping, survival of a restart."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rover_kf.api import codec
from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput
from rover_kf.scaling.decide import decide
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState

WINDOW = 30.0


def row(nodes, seconds, end):
    return Throughput(end - WINDOW, end, nodes, nodes, 10, 640, seconds, 64.0)


policies = st.builds(
    lambda low, span, sizes: AutoscalingPolicy("auto", low, low + span, tuple(sizes), WINDOW, 60.0),
    st.integers(1, 8),
    st.integers(0, 24),
    st.one_of(st.just([]), st.lists(st.integers(1, 32), min_size=1, max_size=6)),
)
laws = st.tuples(
    st.floats(0.0, 2.0), st.floats(0.001, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 0.5)
)


def step_seconds(law, k):
    c0, c1, r0, r2 = law
    return c0 + c1 * 64 / k + r0 * 2 * (k - 1) / k + r2 * (k - 1)


@settings(deadline=None)
@given(
    policy=policies,
    replicas=st.integers(1, 40),
    speeds=st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 60.0)), min_size=1, max_size=8),
    restart=st.floats(0.0, 300.0),
    left=st.integers(0, 10**6),
    steady=st.booleans(),
)
def test_target_is_allowed_and_at_most_twofold(*, policy, replicas, speeds, restart, left, steady):
    """Whatever was measured: an action's target is an allowed size, at most a factor of two away
    unless the job stood outside of its bounds; and every decision has a reason."""
    rows = [row(nodes, seconds, 1000 + WINDOW * i) for i, (nodes, seconds) in enumerate(speeds)]
    here = [row(replicas, speeds[0][1], 2000 + WINDOW * i) for i in range(3)]
    seen = JobObservation(replicas, 0, steady, (*rows, *here), 0, left, restart)
    decision, state = decide(seen, policy, ScalingState(), now=3000)
    assert decision.reason
    if decision.action == "stay":
        assert decision.target == replicas
        assert state.move is None
        return
    assert decision.target in policy.allowed()
    assert decision.target != replicas
    assert steady
    if policy.min <= replicas <= policy.max:
        assert replicas / 2 <= decision.target <= replicas * 2


def live(law, start, top, seed, ticks=90):
    """Ticks at which a job of that law was changed, and where it ended."""
    policy = AutoscalingPolicy("auto", 1, max(top, start), (), WINDOW, 60.0)
    noise, state, now, replicas = random.Random(seed), ScalingState(), 1000.0, start
    rows: list[Throughput] = []
    changes = []
    for tick in range(ticks):
        now += WINDOW
        rows.append(row(replicas, step_seconds(law, replicas) * noise.uniform(0.99, 1.01), now))
        seen = JobObservation(replicas, 0, True, tuple(rows[-64:]), 0, 10**6, 10.0)  # noqa: FBT003
        decision, state = decide(seen, policy, state, now=now)
        if decision.action != "stay":
            replicas, now = decision.target, now + 10.0
            state = state.with_change(now)
            changes.append(tick)
        state = codec.loads(ScalingState, codec.dumps(state))
    return changes, replicas


def cost(law, k):
    return step_seconds(law, k) * (k + 2.0)


@settings(max_examples=25, deadline=None)
@example(law=(0.25, 0.1875, 0.1875, 0.03125), start=1, top=8, seed=9)
@given(law=laws, start=st.integers(1, 16), top=st.integers(1, 16), seed=st.integers(0, 999))
def test_no_flapping_and_never_worse(law, start, top, seed):
    """A job of constant speed is changed a few times at first and hardly ever again, and ends at
    a size that costs no more than the one it began with; forgetting all but the JSON is no harm."""
    changes, end = live(law, start, top, seed)
    assert len(changes) <= 12
    # When bans run out three sizes may be tried again, there and back.
    assert len([tick for tick in changes if tick > 60]) <= 6
    assert cost(law, end) <= 1.06 * cost(law, start)


@settings(max_examples=25, deadline=None)
@given(law=laws, top=st.integers(1, 16), seed=st.integers(0, 999))
def test_from_the_bottom_it_finds_a_good_size(law, top, seed):
    """Started at the minimum, a job ends within 40 % of the cheapest size there is."""
    _, end = live(law, 1, top, seed)
    assert cost(law, end) <= 1.4 * min(cost(law, k) for k in range(1, top + 1))


@settings(deadline=None)
@given(law=laws, sizes=st.lists(st.integers(1, 16), min_size=1, max_size=5, unique=True))
def test_prediction_is_positive_and_inside_its_interval(law, sizes):
    """A prediction is a positive number between its bounds, at any size, from any sizes seen."""
    model = throughput.fit([row(k, step_seconds(law, k) + 1e-3, 100.0) for k in sizes])
    assert model is not None
    for k in (1, 2, 3, 7, 64):
        found = model.predict(k)
        assert 0 < found.lower < found.samples_per_second < found.upper


@settings(deadline=None)
@given(seconds=st.floats(0.01, 10.0), k=st.integers(1, 16), restart=st.floats(1.0, 500.0))
def test_dearer_restarts_never_make_a_change_likelier(seconds, k, restart):
    """Monotone sanity: what is not worth a cheap restart is not worth a dear one."""
    policy = AutoscalingPolicy("auto", 1, 32, (), WINDOW, 60.0)
    rows = tuple(row(k, seconds, 1000 + WINDOW * i) for i in range(3))
    seen = JobObservation(k, 0, True, rows, 0, 2000, restart)  # noqa: FBT003
    dear = dataclasses.replace(seen, restart_seconds=restart * 2)
    if decide(dear, policy, ScalingState(), now=2000)[0].action == "scale":
        assert decide(seen, policy, ScalingState(), now=2000)[0].action == "scale"
