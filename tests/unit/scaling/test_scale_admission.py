# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look with what is around the job: room, others' want, and an API server that refuses."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api.cluster_capacity import ClusterCapacity, NodeCapacity, PodRequirements
from rover_kf.api.samples import Throughput
from rover_kf.scaling.decide import decide
from rover_kf.scaling.decision_input import NOTHING_NEW
from rover_kf.scaling.fair_sharing import UNLIMITED, FairShare, FairShareView
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scale_admission import AdmissionInput, admit
from rover_kf.scaling.scaling_state import JobObservation, ScalingState

POD = PodRequirements({"cpu": 1.0})
POLICY = AutoscalingPolicy(mode="auto", min=1, max=8, window_seconds=10.0)


def window(end, nodes):
    return Throughput(end - 10, end, nodes, nodes, 10, 0, 2.0 / nodes, 64.0)


def look(nodes=2, *, free=8.0, share=UNLIMITED, **changes):
    here = JobObservation(
        nodes,
        0,
        steady=True,
        step=100,
        total_steps=100_000,
        windows=tuple(window(10.0 * i, nodes) for i in range(1, 4)),
    )
    around = ClusterCapacity((NodeCapacity("one", {"cpu": free, "pods": 99.0}),))
    made = AdmissionInput(here, POLICY, ScalingState(), FairShareView(around, POD, share))
    return dataclasses.replace(made, **changes)


def verdict(given):
    return admit(given, *decide(given.observation, given.policy, given.state, now=35.0), now=35.0)


def test_with_room_for_all_it_is_what_decide_says():
    """Seen or not looked at."""
    for given in (look(), look(view=None)):
        found = verdict(given)
        assert (found.decision.action, found.decision.target) == ("scale", 4)
        assert (found.desired, found.bound, found.denial_reason) == (0, "", "")
        assert found.state.move is not None


@pytest.mark.parametrize(("free", "target"), [(1.0, 3), (0.0, 2)])
def test_with_less_room_the_same_is_decided_with_what_there_is(free, target):
    """A smaller step that pays, or to stay; what it would have had is known to others."""
    found = verdict(look(free=free))
    assert found.decision.target == target
    assert (found.desired, found.bound) == (4, "nodes")
    assert found.decision.bound.startswith("nodes have room for")
    assert bool(found.denial_reason) == (target == 2)
    assert (found.state.move is None) == (target == 2)


def test_what_others_lack_is_given_before_anything_else():
    """Without a trial, a vote or a cool-down; and no more is wanted meanwhile."""
    found = verdict(look(4, share=FairShare(2.0, "team/b lacks room and gains more by it")))
    assert (found.decision.action, found.decision.target, found.desired) == ("scale", 2, 0)
    assert "gives 2 of 4 replicas: team/b lacks room" in found.decision.reason


def test_a_share_bounds_growth_and_is_no_room_that_others_could_give():
    """It has what it may have: the others' want is why, and nobody is asked for more."""
    found = verdict(look(2, share=FairShare(2.0, "team/b lacks room and gains more by it")))
    assert (found.decision.action, found.bound) == ("stay", "")
    assert found.denial_reason == "4 would pay, and team/b lacks room and gains more by it"


def test_what_the_api_server_refuses_nobody_else_can_give():
    """Its words are told."""
    found = verdict(look(denial="exceeded quota"))
    assert (found.decision.action, found.desired) == ("stay", 0)
    assert (
        found.denial_reason == "4 would pay, and the API server would not take it: exceeded quota"
    )


def test_the_same_window_again_changes_nothing_that_is_known():
    """What it wants stays as it was told."""
    given = look()
    again = dataclasses.replace(given, state=ScalingState(seen_until=30.0))
    found = verdict(again)
    assert (found.decision.reason, found.desired) == (NOTHING_NEW, None)
