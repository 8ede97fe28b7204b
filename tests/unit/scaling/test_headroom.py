# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many more pods there is room for: nodes, quotas, and what keeps pods away."""

from __future__ import annotations

import math

import pytest

from rover_kf.api.cluster_capacity import (
    ClusterCapacity,
    NodeCapacity,
    PodRequirements,
    QuotaHeadroom,
    Taint,
)
from rover_kf.scaling.headroom import pod_headroom

GIB = float(1 << 30)
NEED = PodRequirements({"cpu": 2.0, "memory": 4 * GIB}, {"cpu": 4.0})


TOLERANT = PodRequirements({"cpu": 2.0}, tolerations=(("gpu", "", ""),))
OTHERWISE = PodRequirements({"cpu": 2.0}, tolerations=(("gpu", "b", ""),))


def node(name="n", cpu=8.0, memory=16 * GIB, pods=10.0, **more):
    return NodeCapacity(name, {"cpu": cpu, "memory": memory, "pods": pods}, **more)


@pytest.mark.parametrize(
    ("nodes", "need", "count"),
    [
        ((node(),), NEED, 4),
        ((node(), node("m", cpu=3.9)), NEED, 5),
        ((node(memory=7.9 * GIB),), NEED, 1),
        ((node(pods=3.0),), NEED, 3),
        ((node(cpu=1.0), node("m", cpu=1.0)), NEED, 0),
        ((), NEED, 0),
        ((node(),), PodRequirements({"nvidia.com/gpu": 1.0}), 0),
        ((node(),), PodRequirements({}), 10),
        ((node(),), PodRequirements({"cpu": 2.0}, selector={"pool": "gpu"}), 0),
        ((node(labels={"pool": "gpu"}),), PodRequirements({"cpu": 2.0},
         selector={"pool": "gpu"}), 4),
        ((node(taints=(Taint("gpu"),)),), NEED, 0),
        ((node(taints=(Taint("gpu", "", "PreferNoSchedule"),)),), NEED, 4),
        ((node(taints=(Taint("gpu", "a"),)),), TOLERANT, 4),
        ((node(taints=(Taint("gpu", "a"),)),), OTHERWISE, 0),
        ((node(),), PodRequirements({"cpu": 2.0}, excluded_nodes=frozenset({"n"})), 0),
    ],
)  # fmt: skip
def test_pods_go_whole_on_nodes_that_take_them(nodes, need, count):
    """Each pod on one node, by its scarcest resource; labels, taints and left out nodes count."""
    found = pod_headroom(need, ClusterCapacity(nodes))
    assert found.count == count
    assert f"room for {count} more" in found.reason


@pytest.mark.parametrize(
    ("left", "count"),
    [
        ({"requests.cpu": 7.0}, 3),
        ({"cpu": 7.0}, 3),
        ({"limits.cpu": 7.0}, 1),
        ({"requests.memory": 4 * GIB, "pods": 9.0}, 1),
        ({"count/pods": 2.0}, 2),
        ({"requests.cpu": -1.0}, 0),
        ({"requests.nvidia.com/gpu": 0.0}, math.inf),
        ({"secrets": 0.0, "count/jobs.batch": 0.0}, math.inf),
    ],
)
def test_a_quota_ends_it_by_what_a_pod_asks_for(left, count):
    """Its tightest key; what a pod does not ask for ends nothing. The quota is named."""
    found = pod_headroom(
        NEED,
        ClusterCapacity(quotas=(QuotaHeadroom("wide", {"pods": 99.0}), QuotaHeadroom("q", left))),
    )
    assert found.count == min(count, 99)
    assert ("quota q " in found.reason.lower()) == (count < 99)


def test_nothing_known_ends_nothing():
    """No nodes and no quotas could be read: there is no bound."""
    assert pod_headroom(NEED, ClusterCapacity()).count == math.inf


def test_the_tightest_bound_is_the_one_that_is_told():
    """A quota of one beside nodes for four."""
    found = pod_headroom(NEED, ClusterCapacity((node(),), (QuotaHeadroom("team", {"pods": 1.0}),)))
    assert (found.count, found.reason) == (
        1,
        "ResourceQuota team leaves 1 of pods, and a pod asks for 1",
    )
