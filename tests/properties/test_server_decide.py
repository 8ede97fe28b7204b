# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Promises of a decision about workers and parameter servers, whatever was measured."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from rover_kf.api import codec
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling import ps_model
from rover_kf.scaling.decision_input import LAST_SHARE
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decide import PsDecision, PsObservation, decide
from rover_kf.scaling.ps_model import PsRow
from rover_kf.scaling.scaling_state import ScalingState, Settled

WINDOW, NOW = 30.0, 5000.0

cores = st.sampled_from([0.25, 1.0, 4.0])
setups = st.builds(ServerSetup, st.just(0.0), st.integers(1, 8), st.integers(1, 4), cores, cores)
rows = st.lists(
    st.builds(PsRow, setups, st.just(16.0), st.floats(1e-2, 1e2)), min_size=0, max_size=6
)
policies = st.builds(
    lambda low, span, most, prior: AutoscalingPolicy(
        "auto",
        low,
        low + span,
        max_servers=most,
        window_seconds=WINDOW,
        restart_prior_seconds=prior,
    ),
    st.integers(1, 8),
    st.integers(0, 12),
    st.integers(0, 8),
    st.floats(1.0, 300.0),
)


def at_work(setup, steps):
    windows = [
        Throughput(NOW - WINDOW * (2 - i), NOW - WINDOW * (1 - i), 1, 1, steps, 0, 0.1, 16.0)
        for i in range(2)
    ]
    return tuple(windows), ScalingState(settled=Settled(setup.workers, setup.servers, 1.0))


@settings(max_examples=300, deadline=None)
@given(
    policy=policies,
    setup=setups,
    shown=rows,
    steps=st.integers(1, 10_000),
    left=st.floats(0.0, 1.0),
    total=st.integers(1, 10**7),
    live=st.booleans(),
    stays=st.sampled_from(["", "no step on storage"]),
)
def test_what_a_change_always_is(*, policy, setup, shown, steps, left, total, live, stays):
    """Inside of the bounds, of one number by a factor of two at most, never of fewer servers, never
    in the last tenth of the work; it earns its restart twice by the law that it saw, and no job
    that cannot be suspended is changed but live."""
    windows, state = at_work(setup, steps)
    law = ps_model.fit(shown)
    seen = PsObservation(
        setup,
        masters=1,
        steady=True,
        windows=windows,
        model=law,
        steps_left=left * total,
        share_left=left,
        live=live,
        suspend_blocker=stays,
    )
    decision, after = decide(seen, policy, state, now=NOW)
    event(decision.action)
    assert decision.reason
    if decision.action == "stay":
        assert decision.current_size == decision.target_size == (setup.workers, setup.servers)
        assert after.move is None
        return
    assert left > LAST_SHARE
    workers, servers = decision.target_size
    assert (workers == setup.workers) != (servers == setup.servers)
    if workers != setup.workers:
        assert workers in policy.allowed()
        assert setup.workers / 2 <= workers <= 2 * setup.workers
    else:
        assert setup.servers < servers <= min(policy.max_servers, 2 * setup.servers)
    cycles = not live or servers != setup.servers
    assert after.move.cycles == cycles
    assert not (cycles and stays)
    target = dataclasses.replace(setup, workers=workers, servers=servers)
    if law is None:
        assert (live, workers) == (True, setup.workers + 1)
    else:
        assert law.reaches(target)
    case = PsDecision.from_observation(seen, policy, state, NOW)
    rate, price = case.predict_rate(target), case.change_seconds(target)
    present = case.cost(setup, case.rate)
    if rate > case.rate:
        assert case.seconds_left * (rate - case.rate) > 2 * price * rate
    else:
        assert workers < setup.workers
        saved = present - case.cost(target, rate)
        assert saved > 2 * case.change_cost(target)


def true_seconds(law, setup):
    t0, t1, t2, t3 = law
    by_servers = t2 / setup.server_cores + t3
    return t0 + t1 / setup.worker_cores + by_servers * setup.workers / setup.servers


def live(law, start, seed, *, coming, ticks=80):
    """Ticks at which a job of that law was changed, and its last setup; an older run of it has
    shown two setups."""
    policy = AutoscalingPolicy(
        "auto", 1, 8, max_servers=4, window_seconds=WINDOW, cooldown_seconds=60.0
    )
    noise, state, now, setup = random.Random(seed), ScalingState(), 1000.0, start
    others = [dataclasses.replace(start, workers=count) for count in (1, 2)]
    known = [PsRow(one, 16.0, true_seconds(law, one)) for one in others]
    windows: list[Throughput] = []
    changes, fewest = [], setup.servers
    for tick in range(ticks):
        seconds = true_seconds(law, setup) * noise.uniform(0.99, 1.01)
        steps = round(WINDOW * setup.workers / seconds * 1000)
        windows.append(Throughput(now, now + WINDOW, 1, 1, steps, 0, 0.1, 16.0))
        now += WINDOW
        if state.settled is not None and windows[-1].started_at >= state.settled.since:
            known.append(PsRow(setup, 16.0, seconds))
        seen = PsObservation(
            setup,
            masters=1,
            steady=True,
            windows=tuple(windows[-64:]),
            model=ps_model.fit(known[-32:]),
            steps_left=1e9,
            share_left=0.9,
            live=coming,
        )
        decision, state = decide(seen, policy, state, now=now)
        if decision.action != "stay":
            setup = dataclasses.replace(
                setup, workers=decision.target, servers=decision.target_servers
            )
            now += 60.0
            state = state.with_change(now)
            changes.append(tick)
        assert setup.servers >= fewest
        state = codec.loads(ScalingState, codec.dumps(state))
    return changes, setup


def cost(law, setup):
    size = setup.workers + setup.servers * setup.server_cores / setup.worker_cores + 3.0
    return size * true_seconds(law, setup) / setup.workers


@settings(max_examples=25, deadline=None)
@given(
    law=st.tuples(*[st.floats(0.01, 2.0)] * 4),
    workers=st.integers(1, 4),
    seed=st.integers(0, 999),
    coming=st.booleans(),
)
def test_no_flapping_and_never_worse(law, workers, seed, coming):
    """A job of constant speed is changed a few times at first and hardly ever again, never has
    fewer servers than it came with, and ends at a setup that costs no more than its first;
    forgetting all but the JSON is no harm."""
    start = ServerSetup(0.0, workers, 1, 1.0, 1.0)
    changes, end = live(law, start, seed, coming=coming)
    event(f"{len(changes)} changes")
    assert len(changes) <= 12
    assert len([tick for tick in changes if tick > 60]) <= 4
    assert cost(law, end) <= 1.06 * cost(law, start)
