# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods are replaced because the others wait for them."""

from __future__ import annotations

import dataclasses

import pytest
from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.api.status import Straggler
from rover_kf.injection import node_affinity
from rover_kf.reconcilers.reconciler import Reconciler


def made(clock, *, action="replace", workers=4):
    policy = {"action": action, "min-seconds": "60s", "replacements": "2"}
    keyed = {f"{names.PREFIX}straggler.{key}": value for key, value in policy.items()}
    keyed[names.PREFIX + "scaling.mode"] = "off"
    cluster = MemoryCluster(clock, manifest(workers, annotations=keyed))
    cluster.pods = tuple(
        Pod(f"digits-worker-{index}", f"u{index}", "worker", index, "Running", node=f"n{index}")
        for index in range(workers)
    )
    return cluster


def slow(index, clock, seconds, ratio=5.4):
    return Straggler(f"digits-worker-{index}", f"n{index}", index, ratio, clock() - seconds)


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def test_the_slowest_is_replaced_after_the_time(clock, history):
    """Not before the policy's time; the slowest alone; told with node, seconds, ratio, budget."""
    cluster = made(clock)
    cluster.stragglers = (slow(1, clock, 59), slow(2, clock, 59, ratio=1.6))
    look(cluster, history)
    assert cluster.deleted == []
    clock.now += 1
    look(cluster, history)
    assert cluster.deleted == ["digits-worker-1"]
    (told,) = [e for e in cluster.events if e.reason == names.EVENT_STRAGGLER_REPLACED]
    assert told.message == (
        "digits-worker-1 on n1 is replaced: rank 1 has held the others up for 60 s, by 5.4 times "
        "their own time a step (1 of 2, straggler.replacements)"
    )


@pytest.mark.parametrize(
    ("workers", "nodes", "left"), [(4, 4, True), (2, 2, False), (4, 1, False), (4, 2, False)]
)
def test_its_node_is_left_out_where_that_pays(clock, history, workers, nodes, left):
    """Three make more of a step without one that is 1.6 times as slow; one alone does not, nor do
    two without two; and a job that is on one node has no other."""
    cluster = made(clock, workers=workers)
    at = [f"n{pod.replica_index % nodes}" for pod in cluster.pods]
    cluster.pods = tuple(
        dataclasses.replace(pod, node=node) for pod, node in zip(cluster.pods, at, strict=True)
    )
    cluster.stragglers = (slow(1, clock, 100, 1.6),)
    look(cluster, history)
    assert cluster.deleted == ["digits-worker-1"]
    template = cluster.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert (at[1] in node_affinity.excluded_nodes(template)) == left


def test_no_more_than_the_budget(clock, history):
    """The third slow pod stays; each look is a controller that has just started."""
    cluster = made(clock)
    for index in (1, 2, 3):
        cluster.stragglers = (slow(index, clock, 100, ratio=1.3),)
        look(cluster, history)
    assert cluster.deleted == ["digits-worker-1", "digits-worker-2"]


def missing(cluster):
    cluster.nodes = 3


def ends(cluster):
    first, *rest = cluster.pods
    cluster.pods = (dataclasses.replace(first, deleting=True), *rest)


def pending(cluster):
    *rest, last = cluster.pods
    cluster.pods = (*rest, dataclasses.replace(last, phase="Pending"))


@pytest.mark.parametrize("why", [missing, ends, pending])
def test_nothing_else_is_under_way(clock, history, why):
    """While a pod is missing, ends or starts, what the slow one has may be the only copy."""
    cluster = made(clock)
    cluster.stragglers = (slow(1, clock, 100),)
    why(cluster)
    look(cluster, history)
    assert cluster.deleted == []


def test_only_where_the_policy_says_so(clock, history):
    """The default reports; and a job of one pod has nobody that waits."""
    for cluster in (made(clock, action="report"), made(clock, workers=1)):
        cluster.stragglers = (slow(0, clock, 1e6),)
        look(cluster, history)
        assert cluster.deleted == []
