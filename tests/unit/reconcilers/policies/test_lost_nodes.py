# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of a node that fell silent are removed after the grace, no others and not earlier."""

from __future__ import annotations

import dataclasses

from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.reconcilers.reconciler import Reconciler


def pods(*, silent="n2"):
    made = [
        Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Running", node=f"n{index}")
        for index in range(4)
    ]
    return tuple(dataclasses.replace(pod, ready=pod.node != silent) for pod in made)


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def lost(cluster):
    return [event.message for event in cluster.events if event.reason == names.EVENT_POD_LOST]


def test_a_silent_nodes_pod_is_removed_after_the_grace(clock, history):
    """Not before it, at the moment that the last look named, told once with node and seconds."""
    given = manifest(annotations={f"{names.PREFIX}failures.node-grace": "20s"})
    cluster = MemoryCluster(clock, given)
    cluster.pods, cluster.silent_nodes = pods(), {"n2": clock() - 17.5}
    assert look(cluster, history).delay == 2.5
    assert len(cluster.pods) == 4
    clock.now += 2.5
    look(cluster, history)
    look(cluster, history)
    assert [pod.replica_index for pod in cluster.pods] == [0, 1, 3]
    (told,) = lost(cluster)
    assert "digits-worker-2" in told
    assert "n2 has been silent for 20 s" in told
    assert "node-grace is 20 s" in told


def test_a_node_that_comes_back_keeps_its_pod(clock, history):
    """Heard again within the grace: nothing is removed."""
    cluster = MemoryCluster(clock)
    cluster.pods, cluster.silent_nodes = pods(), {"n2": clock() - 1}
    look(cluster, history)
    cluster.silent_nodes = {}
    clock.now += 60
    look(cluster, history)
    assert len(cluster.pods) == 4
    assert lost(cluster) == []


def test_pods_that_ended_or_are_ready_stay(clock, history):
    """A silent node is asked for only where a pod is not ready, and ended pods tell their end."""
    cluster = MemoryCluster(clock)
    ended = dataclasses.replace(pods()[2], phase="Succeeded", ready=False)
    cluster.pods = (*pods(silent="")[:2], ended)
    cluster.silent_nodes = dict.fromkeys(("n0", "n1", "n2"), clock() - 3600)
    look(cluster, history)
    assert len(cluster.pods) == 3


def test_a_pod_that_ended_and_waits_for_its_node_is_removed(clock, history):
    """The operator has deleted it, and nobody is there to confirm it: its place would never be
    free again."""
    cluster = MemoryCluster(clock)
    waits = dataclasses.replace(pods()[2], phase="Failed", deleting=True)
    cluster.pods = (*pods(silent="")[:2], waits)
    cluster.silent_nodes = {"n2": clock() - 60}
    look(cluster, history)
    assert [pod.replica_index for pod in cluster.pods] == [0, 1]
    (told,) = lost(cluster)
    assert "digits-worker-2" in told


def test_who_may_not_remove_it_says_so_and_goes_on(clock, history):
    """Nothing is said to be removed; the job is looked after as before."""
    cluster = MemoryCluster(clock)
    cluster.pods, cluster.silent_nodes = pods(), {"n2": clock() - 60}
    cluster.may_not = "403: may not delete pods"
    look(cluster, history)
    assert len(cluster.pods) == 4
    assert lost(cluster) == []
    (told,) = [one for one in cluster.events if one.reason == names.EVENT_POD_NOT_REMOVED]
    assert told.message == (
        "digits-worker-2 is not removed, though n2 is not heard: 403: may not delete pods"
    )
