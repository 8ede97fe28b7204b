# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job whose pods do not start says so, once each time."""

from __future__ import annotations

from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.reconcilers.policies import pending_pods
from rover_kf.reconcilers.reconciler import Reconciler

FULL = "0/3 nodes are available: 3 Insufficient cpu."


def waiting(index, since):
    known = {"unschedulable": FULL, "unschedulable_since": since}
    return Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Pending", **known)


def told(cluster, reason=names.EVENT_POD_UNSCHEDULABLE):
    return [event.message for event in cluster.events if event.reason == reason]


def test_pods_without_a_node_are_told(clock, history):
    """With the scheduler's words, after a time in which a node may come free; anew when others
    begin to wait, or the same again."""
    cluster = MemoryCluster(clock, manifest(5))
    cluster.reachable = False
    cluster.pods = tuple(waiting(index, clock()) for index in range(5))
    reconcilers = Reconciler(cluster, history, clock=clock)
    assert reconcilers.run_once(KEY).delay <= pending_pods.UNSCHEDULABLE_SECONDS
    assert told(cluster) == []
    for _ in range(3):
        clock.now += pending_pods.UNSCHEDULABLE_SECONDS
        reconcilers.run_once(KEY)
    (message,) = told(cluster)
    named = "digits-worker-0, digits-worker-1, digits-worker-2 and 2 more"
    assert message.startswith(f"{named}: no node for 10 s: {FULL}")
    cluster.pods = (waiting(0, clock()),)
    clock.now += pending_pods.UNSCHEDULABLE_SECONDS + 1
    reconcilers.run_once(KEY)
    assert told(cluster)[1].startswith("digits-worker-0: no node for 11 s")


def test_a_suspended_job_waits_for_nobody(clock, history):
    """Its last pods may still be there."""
    cluster = MemoryCluster(clock, manifest(1, spec={"runPolicy": {"suspend": True}}))
    cluster.pods = (waiting(0, clock() - 60),)
    Reconciler(cluster, history, clock=clock).run_once(KEY)
    assert told(cluster) == []


def test_pods_that_are_prepared_for_long_are_told(clock, history):
    """Not those whose sidecar runs already: what their trainer waits for the kubelet says."""
    waits = ContainerStatus("pytorch", running=False, reason="PodInitializing")
    runs = ContainerStatus("rover-sidecar", running=True)
    known = {"scheduled_at": clock(), "node": "n0"}
    both = [(waits,), (runs, waits)]
    cluster = MemoryCluster(clock, manifest(2))
    cluster.reachable = False
    cluster.pods = tuple(
        Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Pending",
            containers=containers, **known)
        for index, containers in enumerate(both)
    )  # fmt: skip
    for _ in range(3):
        Reconciler(cluster, history, clock=clock).run_once(KEY)
        clock.now += pending_pods.PREPARING_SECONDS
    (message,) = told(cluster, names.EVENT_POD_PENDING)
    assert message.startswith("digits-worker-0: no container has started for 120 s: ")
