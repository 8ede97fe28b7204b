# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which workers and parameter servers a job goes to, what it waits for, when it goes back."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api import codec
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling import ps_model
from rover_kf.scaling.decision_input import NOTHING_NEW
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_decide import PsObservation, allowed_text, decide, may_change
from rover_kf.scaling.ps_model import PsRow
from rover_kf.scaling.scaling_state import ScalingState, Settled

WINDOW, NOW = 10.0, 10_000.0
POLICY = AutoscalingPolicy("auto", 1, 4, max_servers=2, window_seconds=WINDOW)
ALONE = ServerSetup(0.0, 1, 1, 1.0, 1.0)
"""One worker, one server."""


def seconds(setup, *, compute=1.0, servers=0.0):
    """Of a worker's step: its own, and what all workers do on the servers."""
    return compute / setup.worker_cores + servers * setup.workers / setup.servers


def rows(setups, **law):
    return [PsRow(setup, 16.0, seconds(setup, **law)) for setup in setups]


def model(*setups, **law):
    return ps_model.fit(rows(setups, **law))


def windows(setup, count=2, *, until=NOW, **law):
    """The newest windows of a run that has had that setup for long."""
    steps = round(WINDOW * setup.workers / seconds(setup, **law) * 100)
    return tuple(
        Throughput(until - WINDOW * (left + 1), until - WINDOW * left, 1, 1, steps, 0, 0.1, 16.0)
        for left in reversed(range(count))
    )


def seen(setup=ALONE, **known):
    given = {"windows": windows(setup), "steps_left": 100_000.0, "share_left": 0.8, **known}
    return PsObservation(setup, masters=1, steady=True, **given)


def there(setup=ALONE, **known):
    """A memory in which all of it has been at work for long."""
    return ScalingState(settled=Settled(setup.workers, setup.servers, 1.0), **known)


def test_a_worker_more_is_tried_where_that_costs_nearly_nothing():
    """Workers come and go, and nothing is known of another number: one more, live."""
    decision, state = decide(seen(live=True), POLICY, there(), now=NOW)
    assert (decision.action, decision.current_size, decision.target_size) == (
        "scale",
        (1, 1),
        (2, 1),
    )
    assert decision.change == "Worker 1 -> 2"
    assert decision.predicted_gain == 2
    assert "nothing is known yet" in decision.reason
    assert not state.move.cycles
    assert decision.allowed == "1-4, PS 1-2"


def test_without_history_a_job_of_fixed_size_stays():
    """A suspension is dear, and one setup says nothing of another one."""
    decision, _ = decide(seen(), POLICY, there(), now=NOW)
    assert decision.action == "stay"
    assert "neither it nor a run alike has had another" in decision.reason


def test_workers_by_the_law_through_a_suspension():
    """A run alike has had two workers: they are worth all pods' end."""
    law = model(ALONE, dataclasses.replace(ALONE, workers=2))
    decision, state = decide(seen(model=law), POLICY, there(), now=NOW)
    assert decision.target_size == (2, 1)
    assert state.move.cycles
    assert "60 s a change through suspension" in decision.reason


def test_servers_where_workers_wait_for_them():
    """Two workers on one server are hardly faster than one: another server is."""
    two, wide = dataclasses.replace(ALONE, workers=2), dataclasses.replace(ALONE, servers=2)
    slow = {"compute": 0.05, "servers": 1.0}
    law = model(ALONE, two, wide, **slow)
    here = seen(two, model=law, live=True, windows=windows(two, **slow))
    decision, state = decide(here, POLICY, there(two), now=NOW)
    assert (decision.target_size, decision.change) == ((2, 2), "PS 1 -> 2")
    assert state.move.cycles
    decision, _ = decide(here, dataclasses.replace(POLICY, max_servers=0), there(two), now=NOW)
    assert decision.target_servers == 1
    assert decision.target < 2, "a worker that brings nothing goes"
    stays = dataclasses.replace(here, suspend_blocker="no step of it is on storage")
    assert decide(stays, POLICY, there(two), now=NOW)[0].target_servers == 1


@pytest.mark.parametrize(
    ("known", "state", "why"),
    [
        ({"steady": False}, {}, "not all of its workers and servers train yet"),
        ({"cores_seconds": 7.0}, {}, "the CPU limit was raised 7 s ago"),
        ({"share_left": 0.1}, {}, "nearly done"),
        ({"steps_left": 23_000.0}, {}, "too little work left"),
        ({"windows": windows(ALONE, 1)}, {}, "1 of 2 windows measured at 1 workers and 1 PS"),
        ({"raised_at": NOW - 15}, {}, "1 of 2 windows"),
        (
            {"suspend_blocker": "no step of it is on storage"},
            {},
            "through a suspension alone, and no step",
        ),
        ({}, {"seen_until": NOW}, NOTHING_NEW),
        ({}, {"changed_at": NOW - 100}, "100 s since the last change, 300 s are kept"),
        (
            {},
            {"changed_at": NOW - 310, "cycle_seconds": 90.0},
            "310 s since the last change, 450 s",
        ),
        (
            {},
            {"changed_at": NOW - 9, "verified": True, "direction": -1},
            "9 s since the last change",
        ),
        ({}, {"changed_at": NOW - 9, "verified": True, "direction": 1}, ""),
    ],
)
def test_what_it_waits_for(known, state, why):
    """Each alone keeps a job where it is that would have another worker."""
    law = model(ALONE, dataclasses.replace(ALONE, workers=2))
    here = dataclasses.replace(seen(model=law), **known)
    decision, after = decide(here, POLICY, there(**state), now=NOW)
    assert (decision.action == "stay") == bool(why)
    assert why in decision.reason
    assert (after.move is None) == bool(why)


def moved(setup, **known):
    """A job after a change that our own decision has made, and what is remembered of it."""
    law = model(ALONE, dataclasses.replace(ALONE, workers=2))
    _, state = decide(seen(model=law, **known), POLICY, there(), now=NOW)
    state = codec.loads(ScalingState, codec.dumps(state)).with_change(NOW + 5)
    return state, dataclasses.replace(ALONE, workers=2) if setup is None else setup


@pytest.mark.parametrize(("compute", "action"), [(1.0, "stay"), (2.2, "roll_back")])
def test_what_was_changed_is_verified_or_taken_back(compute, action):
    """By two windows since all were at work again; what those took is the next change's price."""
    state, setup = moved(None)
    assert state.move.needed < state.move.predicted
    after = NOW + 100
    decision, state = decide(
        seen(setup, windows=windows(ALONE, until=after)), POLICY, state, now=after
    )
    assert "verifying 2 workers and 1 PS: 0 of 2" in decision.reason
    assert (state.settled, state.cycle_seconds) == (Settled(2, 1, after), 100.0)
    fresh = windows(setup, until=after + 25, compute=compute)
    decision, state = decide(seen(setup, windows=fresh), POLICY, state, now=after + 25)
    assert decision.action == action
    if action == "stay":
        assert decision.reason.startswith("verified: ")
        assert (state.move, state.verified) == (None, True)
        return
    assert decision.target_size == (1, 1)
    assert state.banned_setups(after + 25) == {(2, 1)}
    assert (state.move.rolls_back, state.move.cycles) == (True, True)
    state = state.with_change(after + 30)
    assert state.move is None
    home = windows(ALONE, until=after + 1200)
    law = model(ALONE, dataclasses.replace(ALONE, workers=2))
    again = seen(model=law, windows=home)
    _, state = decide(again, POLICY, state, now=after + 60)
    assert decide(again, POLICY, state, now=after + 1200)[0].action == "stay"


def test_going_back_has_to_pay_too():
    """Near the end a disappointing size is kept, and not tried again."""
    state, setup = moved(None)
    _, state = decide(seen(setup, windows=()), POLICY, state, now=NOW + 100)
    slow = windows(setup, until=NOW + 130, compute=2.2)
    here = seen(setup, windows=slow, steps_left=500.0)
    decision, state = decide(here, POLICY, state, now=NOW + 130)
    assert decision.action == "stay"
    assert "too late to go back" in decision.reason
    assert state.move is None
    assert state.banned_setups(NOW + 131) == {(2, 1)}


def test_who_does_not_train_together_goes_back():
    """After a suspension there is twice the patience: all pods are made anew."""
    state, setup = moved(None)
    here = dataclasses.replace(seen(setup, windows=()), steady=False)
    assert decide(here, POLICY, state, now=NOW + 400)[0].action == "stay"
    decision, after = decide(here, POLICY, state, now=NOW + 700)
    assert (decision.action, decision.target_size) == ("roll_back", (1, 1))
    assert "did not train together within" in decision.reason
    bound = dataclasses.replace(here, suspend_blocker="Kueue has it")
    decision, after = decide(bound, POLICY, state, now=NOW + 700)
    assert (decision.action, after.move) == ("stay", state.move)


def test_another_ones_change_is_the_last_word():
    """What was on trial is no more."""
    state, _ = moved(None)
    three = dataclasses.replace(ALONE, workers=3)
    decision, state = decide(seen(three), POLICY, state, now=NOW + 100)
    assert "set to 3 workers and 1 PS by someone else" in decision.reason
    assert state.move is None


def test_what_an_older_controller_has_written_is_read():
    """Its decisions, moves and bans are of jobs without servers."""
    move = {"origin": 1, "target": 2, "decided_at": 5.0}
    old = {"move": move, "changed_at": 5.0, "bans": [{"size": 3, "until": 9.0, "times": 2}]}
    state = codec.decode(ScalingState, old)
    assert (state.move.origin_size, state.move.target_size, state.move.cycles) == (
        (1, 0),
        (2, 0),
        False,
    )
    assert state.banned_setups(6.0) == {(3, 0)}
    assert (state.settled, state.cycle_seconds) == (None, 0.0)


def test_what_is_allowed():
    """Nothing but what it has is a reason not to look at it at all."""
    assert may_change(POLICY, ALONE)
    fixed = AutoscalingPolicy("auto", 1, 1)
    assert not may_change(fixed, ALONE)
    assert may_change(dataclasses.replace(fixed, max_servers=2), ALONE)
    assert not may_change(dataclasses.replace(fixed, max_servers=1), ALONE)
    assert allowed_text(fixed, 1) == "1"
