# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The decision rule, case by case."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api import codec
from rover_kf.api.samples import Throughput
from rover_kf.scaling.decide import decide
from rover_kf.scaling.fair_sharing import FairShare
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scale_admission import yield_replicas
from rover_kf.scaling.scaling_state import JobObservation, ScalingState

POLICY = AutoscalingPolicy(mode="auto", min=1, max=8, window_seconds=10, cooldown_seconds=30)


def window(nodes, seconds, end, *, batch=64.0, processes=1):
    return Throughput(
        started_at=end - 10,
        ended_at=end,
        nodes=nodes,
        world_size=nodes * processes,
        steps=max(1, int(10 / seconds)),
        samples=int(batch * 10 / seconds),
        step_seconds=seconds,
        global_batch=batch,
    )


def windows(nodes, seconds, *, until=1000.0, count=3):
    return tuple(window(nodes, seconds, until - 10 * i) for i in reversed(range(count)))


def look(replicas=2, seconds=1.0, **changes):
    seen = JobObservation(
        replicas=replicas,
        masters=0,
        steady=True,
        windows=windows(replicas, seconds),
        step=100,
        total_steps=10_000,
        restart_seconds=5.0,
    )
    return dataclasses.replace(seen, **changes)


def after(decision_state, now):
    return decision_state[1].with_change(now)


@pytest.mark.parametrize(("waits", "told"), [(0.05, False), (0.3, True)])
def test_who_waits_for_data_hears_of_loaders_before_replicas(waits, told):
    """It is told where the job would grow, and stops nothing: replicas bring loaders, too."""
    hungry = tuple(dataclasses.replace(each, wait_fraction=waits) for each in windows(2, 1.0))
    decision, _ = decide(look(windows=hungry), POLICY, ScalingState(), now=1000)
    assert (decision.action, decision.target) == ("scale", 4)
    assert ("30% of a step waits for data: loader workers" in decision.reason) is told


def test_scales_up_when_the_work_left_pays_for_it():
    """With hours of work and a single size seen, the hopeful model doubles the job at most."""
    decision, state = decide(look(), POLICY, ScalingState(), now=1000)
    assert (decision.action, decision.target) == ("scale", 4)
    assert decision.predicted_gain == pytest.approx(2 / 1.15, rel=0.01)
    assert "64.0 -> 111.3 samples/s" in decision.reason
    assert state.move is not None
    assert state.move.target == 4


def test_bounds_and_sizes_limit_the_target():
    """A maximum of 3 and a list of sizes are both kept."""
    up_to_three = dataclasses.replace(POLICY, max=3)
    assert decide(look(), up_to_three, ScalingState(), now=1000)[0].target == 3
    listed = dataclasses.replace(POLICY, sizes=(1, 2, 3, 8))
    assert decide(look(), listed, ScalingState(), now=1000)[0].target == 3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"steady": False}, "steadily"),
        ({"windows": windows(2, 1.0, count=1)}, "1 of 2 windows"),
        ({"windows": windows(3, 1.0)}, "0 of 2 windows"),
        ({"step": 9_100}, "nearly done"),
        ({"step": 0, "total_steps": 12}, "12 s of work left"),
    ],
)
def test_stays_and_says_why(changes, word):
    """Nothing is changed while not training, unmeasured, at the end, or for little work left."""
    decision, state = decide(look(**changes), POLICY, ScalingState(), now=1000)
    assert decision.action == "stay"
    assert decision.target == decision.current == 2
    assert word in decision.reason
    assert state.move is None


def test_unknown_total_counts_as_an_hour():
    """A trainer that does not say how long it trains is scaled as if an hour were left."""
    decision, _ = decide(look(total_steps=None), POLICY, ScalingState(), now=1000)
    assert decision.action == "scale"
    assert "3600 s of work left" in decision.reason


def test_restart_prior_until_measured():
    """An unmeasured restart costs the prior: with 60 s and two minutes left nothing is changed."""
    seen = look(restart_seconds=0.0, step=0, total_steps=120)
    decision, _ = decide(seen, POLICY, ScalingState(), now=1000)
    assert decision.action == "stay"
    assert decision.restart_seconds == 60


def test_one_window_is_judged_once():
    """A second look at the same windows neither votes nor decides."""
    still = dataclasses.replace(POLICY, hysteresis=0.99)
    _, state = decide(look(), still, ScalingState(), now=1000)
    decision, _ = decide(look(), POLICY, state, now=1001)
    assert decision.reason == "no new window since the last look"


def test_move_under_way_is_not_decided_again():
    """While a move is being made, the decision waits for it: no double action."""
    _, state = decide(look(), POLICY, ScalingState(), now=1000)
    again, same = decide(look(), POLICY, state, now=1010)
    assert again.action == "stay"
    assert same == state


def moved(seconds_after, count=3, **changes):
    """A job scaled 2 -> 3 at 1000 and measured afterwards at so many seconds a step."""
    policy = dataclasses.replace(POLICY, max=3)
    state = after(decide(look(), policy, ScalingState(), now=1000), now=1001)
    old, new = windows(2, 1.0), windows(3, seconds_after, until=1040, count=count)
    seen = look(replicas=3, windows=(*old, *new), **changes)
    return decide(seen, policy, state, now=1041)


def test_verified_change_is_kept():
    """Enough throughput after the change: kept, and the reason compares it with the promise."""
    decision, state = moved(0.7)
    assert decision.action == "stay"
    assert decision.reason.startswith("verified: 91.4 samples/s at 3 replicas, 64.0 before")
    assert state.move is None


def test_disappointing_change_is_rolled_back_and_banned():
    """Worse than before: back to where it was, and not tried again for half an hour."""
    decision, state = moved(1.05)
    assert (decision.action, decision.target) == ("roll_back", 2)
    assert "going back to 2" in decision.reason
    assert state.banned_setups(1041 + 1700) == {(3, 0)}
    assert state.banned_setups(1041 + 1900) == frozenset()
    settled = state.with_change(1042)
    assert settled.move is None


def test_rolled_back_job_is_left_alone():
    """After the ban's cause is measured too, the model itself does not go back up."""
    _, state = moved(1.05)
    state = state.with_change(1042)
    seen = look(windows=(*windows(2, 1.0), *windows(3, 1.05, until=1040), window(2, 1.0, 5000)))
    seen = dataclasses.replace(seen, windows=(*seen.windows, window(2, 1.0, 5010)))
    policy = dataclasses.replace(POLICY, min=2, max=3)
    assert decide(seen, policy, state, now=5010)[0].action == "stay"


def test_ban_doubles_when_a_size_disappoints_again():
    """A size that keeps disappointing is tried ever more rarely."""
    state = ScalingState().with_ban(4, 1800, 0.0).with_ban(4, 1800, 2000.0)
    assert state.banned_setups(2000 + 3500) == {(4, 0)}
    assert state.banned_setups(2000 + 3700) == frozenset()


def test_waits_for_windows_before_judging():
    """One window after a change is not enough to keep, nor to take back what is nearly enough."""
    for seconds in (0.7, 0.85):
        decision, state = moved(seconds, count=1)
        assert decision.action == "stay"
        assert "1 of 2 windows" in decision.reason
        assert state.move is not None


def test_one_window_far_below_is_enough():
    """What no noise explains is taken back after a single window."""
    decision, _ = moved(1.05, count=1)
    assert (decision.action, decision.target) == ("roll_back", 2)


def test_world_that_never_forms_is_taken_back():
    """Pods that do not come up for five minutes: the replicas are given back."""
    policy = dataclasses.replace(POLICY, max=3)
    state = after(decide(look(), policy, ScalingState(), now=1000), now=1001)
    seen = look(replicas=3, steady=False, windows=windows(2, 1.0))
    assert decide(seen, policy, state, now=1200)[0].action == "stay"
    decision, _ = decide(seen, policy, state, now=1302)
    assert (decision.action, decision.target) == ("roll_back", 2)
    assert "did not train together" in decision.reason


def test_cool_down_between_two_changes():
    """A verified change is followed by nothing until the cool-down is over."""
    policy = dataclasses.replace(POLICY, max=8)
    state = ScalingState(changed_at=900.0, direction=1)
    decision, _ = decide(look(), dataclasses.replace(policy, cooldown_seconds=300), state, now=1000)
    assert "100 s since the last change" in decision.reason
    assert decide(look(), policy, state, now=1000)[0].action == "scale"


def test_verified_change_may_be_followed_at_once():
    """A change that kept its promise is no longer on trial: the cool-down does not hold it up."""
    slow = dataclasses.replace(POLICY, cooldown_seconds=3600)
    state = ScalingState(changed_at=900.0, direction=1)
    assert decide(look(), slow, state, now=1000)[0].action == "stay"
    kept = dataclasses.replace(state, verified=True)
    decision, moving = decide(look(), slow, kept, now=1000)
    assert decision.action == "scale"
    assert not moving.with_change(1001).verified
    assert moved(0.7)[1].verified


def test_a_gain_that_a_failed_try_would_eat_is_left():
    """The dearer the way back, the more has to be hoped for: here it is the restart's length."""
    short = {"step": 0, "total_steps": 500, "restart_seconds": 5.0}
    assert decide(look(**short), POLICY, ScalingState(), now=1000)[0].action == "scale"
    dear = look(**(short | {"restart_seconds": 60.0}))
    assert decide(dear, POLICY, ScalingState(), now=1000)[0].action == "stay"


def test_reversal_needs_two_windows():
    """Going down after going up is decided only by the second window in a row."""
    falls = (*windows(2, 1.0, until=500), *windows(4, 2.0))
    seen = look(replicas=4, windows=falls)
    state = ScalingState(changed_at=600.0, direction=1)
    first, state = decide(seen, POLICY, state, now=1000)
    assert first.action == "stay"
    assert "waits for a second window" in first.reason
    seen = dataclasses.replace(seen, windows=(*falls, window(4, 2.0, 1010)))
    second, _ = decide(seen, POLICY, state, now=1010)
    assert (second.action, second.target) == ("scale", 2)


def test_owner_changes_are_accepted():
    """Replicas set by someone else end the move: the owner's word counts."""
    _, state = decide(look(), POLICY, ScalingState(), now=1000)
    decision, state = decide(look(replicas=6), POLICY, state.with_change(1001), now=1010)
    assert "by someone else" in decision.reason
    assert state.move is None


def test_edited_bounds_are_enforced():
    """A maximum lowered below the present size brings the job down at once."""
    policy = dataclasses.replace(POLICY, max=3)
    decision, _ = decide(look(replicas=8), policy, ScalingState(), now=1000)
    assert (decision.action, decision.target) == ("scale", 3)
    assert "outside of the allowed 1..3" in decision.reason


def test_master_counts_as_a_node():
    """Master-style jobs: windows count the master, replicas do not."""
    seen = look(replicas=1, masters=1, windows=windows(2, 1.0))
    policy = dataclasses.replace(POLICY, max=2)
    decision, _ = decide(seen, policy, ScalingState(), now=1000)
    assert (decision.action, decision.target) == ("scale", 2)
    assert decision.predicted_gain == pytest.approx(1.4, rel=0.01)


def test_state_survives_the_codec():
    """The whole state is JSON and back, bit for bit."""
    _, state = moved(1.05)
    assert codec.loads(ScalingState, codec.dumps(state)) == state


def test_value_of_time_moves_between_cost_and_speed():
    """Of the same measurements a job that minds cost alone stays, one that minds time grows."""
    seen = look(windows=(*windows(1, 1.6, until=900.0), *windows(2, 1.0)))
    frugal = dataclasses.replace(POLICY, value_of_time=0.0)
    hurried = dataclasses.replace(POLICY, value_of_time=8.0)
    assert decide(seen, frugal, ScalingState(), now=1000)[0].target < 2
    assert decide(seen, hurried, ScalingState(), now=1000)[0].target > 2


def test_a_deadline_goes_before_cost():
    """What would be too dear is paid for where the deadline is missed without it, and only then;
    a smaller size that would miss it is not gone to."""
    seen = look(windows=(*windows(1, 1.6, until=900.0), *windows(2, 1.0)))
    left = 9_900.0
    frugal = dataclasses.replace(POLICY, value_of_time=0.0)
    late = dataclasses.replace(frugal, deadline=1000 + 0.9 * left)
    just = dataclasses.replace(frugal, deadline=1000 + 1.2 * left)
    ample = dataclasses.replace(frugal, deadline=1000 + 3 * left)
    assert decide(seen, late, ScalingState(), now=1000)[0].target > 2
    assert decide(seen, just, ScalingState(), now=1000)[0].target == 2
    assert decide(seen, ample, ScalingState(), now=1000)[0].target == 1


def test_a_decision_tells_what_it_reckoned_with():
    """Windows, work left, allowed and banned sizes."""
    state = ScalingState().with_ban(4, 1800, 1000)
    told, _ = decide(look(), POLICY, state, now=1000)
    assert (told.windows, told.seconds_left, told.allowed, told.banned) == (3, 9900.0, "1-8", "4")
    listed = dataclasses.replace(POLICY, sizes=(1, 2, 8))
    assert decide(look(), listed, ScalingState(), now=1000)[0].allowed == "1,2,8"


def test_giving_way_is_no_try():
    """Down to the share's largest allowed size, once; nothing is verified, and a job that is not
    whole, is changing, or has no more than its share is left alone."""
    listed = dataclasses.replace(POLICY, sizes=(1, 2, 4))
    seen, some = look(4), FairShare(3.0, "team/b lacks room and gains more by it")
    found = yield_replicas(seen, listed, ScalingState(), some, now=1000)
    assert found is not None
    decision, state = found
    assert (decision.action, decision.target) == ("scale", 2)
    assert decision.reason.startswith("gives 2 of 4 replicas: team/b lacks room")
    assert state.move is not None
    assert state.move.needed == 0.0
    kept = decide(look(2), listed, state.with_change(960), now=1000)
    assert "verified" in kept[0].reason
    assert yield_replicas(seen, listed, state, some, now=1001) is None
    assert yield_replicas(look(2), listed, ScalingState(), some, now=1000) is None
    assert yield_replicas(look(4, steady=False), listed, ScalingState(), some, now=1000) is None
    assert yield_replicas(seen, listed, ScalingState(), FairShare(0.0), now=1000) is None
