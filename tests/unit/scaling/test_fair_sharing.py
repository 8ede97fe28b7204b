# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who gives way to whom, and how far, when a cluster or a quota is full."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.cluster_capacity import (
    ClusterCapacity,
    NodeCapacity,
    PodRequirements,
    QuotaHeadroom,
)
from rover_kf.scaling.fair_sharing import (
    MAX_PENDING_SECONDS,
    CompetingJob,
    fair_shares,
    subtract_promised,
)
from rover_kf.scaling.headroom import pod_headroom

ONE = PodRequirements({"cpu": 1.0})
LINEAR = tuple((size, 10.0 * size) for size in range(1, 9))
FLAT = tuple((size, 10.0 + 0.01 * size) for size in range(1, 9))


def node(name, free=0.0):
    return NodeCapacity(name, {"cpu": free, "pods": 50.0})


def member(name, asked, *, on=None, **more):
    places = tuple(f"n{index}" for index in range(asked)) if on is None else tuple(on)
    given = {"min_replicas": 1, "rates": LINEAR, "work": 36_000.0, "bound": "nodes", **more}
    return CompetingJob(
        name,
        given.pop("namespace", "team"),
        given.pop("requirements", ONE),
        asked,
        nodes=places,
        **given,
    )


def share(mine, others, around):
    return fair_shares((mine, *others), around)[mine.name]


FULL = ClusterCapacity(tuple(node(f"n{index}") for index in range(3)))
"""Three nodes, each with room for one pod, which the first job has."""
WAITING = member("b", 1, on=(), pending_seconds=5.0, rates=())


def test_alone_or_among_the_content_there_is_no_bound():
    """Nobody lacks room: each job decides for itself."""
    mine = member("a", 3)
    assert share(mine, (), FULL).max_replicas == math.inf
    assert share(mine, (member("b", 1, on=("n0",)),), FULL).max_replicas == math.inf
    assert share(mine, (WAITING,), ClusterCapacity()).max_replicas == math.inf


def test_a_full_cluster_makes_room_for_one_that_waits():
    """Shrink instead of wait: the waiting job's fewest go before anybody's second replica."""
    found = share(member("a", 3), (WAITING,), FULL)
    assert found.max_replicas == 2
    assert "b lacks room" in found.reason


def test_nobody_goes_below_its_fewest():
    """A job that needs all that it has keeps it, and the other one waits."""
    assert share(member("a", 3, min_replicas=3), (WAITING,), FULL).max_replicas == 3


@pytest.mark.parametrize(("weight", "most"), [(1.0, 3), (8.0, 2), (0.01, 3)])
def test_priority_decides_who_gets_the_next_replica(weight, most):
    """Among equals nothing moves, since a change costs a restart; worth more, it gets another."""
    mine, other = member("a", 3), member("b", 1, on=("n3",), desired=2, weight=weight)
    around = ClusterCapacity((*FULL.nodes, node("n3")))
    assert share(mine, (other,), around).max_replicas == most


def test_who_hardly_profits_gives_to_who_does():
    """A job whose throughput is flat goes to its fewest; and only as far as others want."""
    around = ClusterCapacity((*FULL.nodes, node("n3")))
    flat = member("a", 3, rates=FLAT)
    assert share(flat, (member("b", 1, on=("n3",), desired=2),), around).max_replicas == 2
    assert share(flat, (member("b", 1, on=("n3",), desired=8),), around).max_replicas == 1


def test_large_pods_take_more_of_the_room():
    """Two pods of the first job make room for one of the second, which asks for twice as much."""
    around = ClusterCapacity((node("n0"), node("n1")))
    mine = member("a", 4, on=("n0", "n0", "n1", "n1"))
    large = member(
        "b", 1, on=(), pending_seconds=5.0, requirements=PodRequirements({"cpu": 2.0}), rates=()
    )
    assert share(mine, (large,), around).max_replicas == 2


def test_who_could_not_use_the_room_gets_none():
    """A pod for other nodes, and one that has waited for so long, make nobody give way."""
    elsewhere = dataclasses.replace(
        WAITING, requirements=PodRequirements({"cpu": 1.0}, selector={"pool": "gpu"})
    )
    hopeless = dataclasses.replace(WAITING, pending_seconds=MAX_PENDING_SECONDS)
    assert share(member("a", 3), (elsewhere,), FULL).max_replicas == math.inf
    assert share(member("a", 3), (hopeless,), FULL).max_replicas == math.inf


def test_a_quota_is_shared():
    """A full quota: who gains more by it gets the replica of another one."""
    around = ClusterCapacity(quotas=(QuotaHeadroom("q", {"requests.cpu": 0.0}),))
    assert (
        share(
            member("a", 3), (member("b", 1, desired=2, weight=8.0, bound="quota q"),), around
        ).max_replicas
        == 2
    )


def test_who_is_bound_by_something_else_asks_nobody_for_nodes():
    """A job that a quota keeps from growing would not use the nodes that others gave."""
    around = ClusterCapacity((*FULL.nodes, node("n3")))
    other = member("b", 1, on=("n3",), desired=2, weight=8.0, bound="quota q")
    assert share(member("a", 3), (other,), around).max_replicas == math.inf


def test_what_others_were_promised_is_not_free():
    """A job that asks for one more than has a node yet: its node is no longer left to others."""
    around = ClusterCapacity((node("n0", 1.0), node("n1", 1.0)))
    other = member("b", 2, on=("n5",))
    assert pod_headroom(ONE, subtract_promised(around, (other,))).count == 1
    assert pod_headroom(ONE, subtract_promised(around, ())).count == 2


@st.composite
def contests(draw):
    count = draw(st.integers(1, 4))
    members, held = [], 0
    for index in range(count):
        asked = draw(st.integers(1, 4))
        placed = draw(st.integers(0, asked))
        places = tuple(f"n{held + i}" for i in range(placed))
        held += placed
        members.append(
            member(
                f"j{index}", asked, on=places,
                min_replicas=draw(st.integers(1, asked)),
                desired=draw(st.integers(0, 8)),
                pending_seconds=0.0 if placed == asked else 5.0,
                rates=draw(st.sampled_from([LINEAR, FLAT, ()])),
                weight=draw(st.floats(0.1, 10.0)),
                work=draw(st.floats(1.0, 1e6)),
            )
        )  # fmt: skip
    free = draw(st.integers(0, 3))
    nodes = (*(node(f"n{i}") for i in range(held)), *(node(f"f{i}", 1.0) for i in range(free)))
    return members, ClusterCapacity(nodes), held + free


@settings(deadline=None)
@given(contests())
def test_shares_fit_together(contest):
    """What all jobs may have together is never more than there is, but for jobs that are at their
    fewest; and nobody is sent below them."""
    members, around, capacity = contest
    found = {name: one.max_replicas for name, one in fair_shares(members, around).items()}
    assert all(found[one.name] >= one.min_replicas for one in members)
    bounded = [one for one in members if found[one.name] != math.inf]
    above = sum(found[one.name] for one in bounded if found[one.name] > one.min_replicas)
    assert above <= capacity
