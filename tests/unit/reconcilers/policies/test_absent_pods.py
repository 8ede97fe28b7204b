# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that cannot come are not waited for; the first pod gets another one's room."""

from __future__ import annotations

import dataclasses

import pytest
from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.reconcilers.planner import IDLE_SECONDS
from rover_kf.reconcilers.policies import absent_pods, pending_pods
from rover_kf.reconcilers.reconciler import Reconciler

FULL = "0/3 nodes are available: 3 Insufficient cpu."


def pod(index, phase="Running", **known):
    return Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, phase, **known)


def unplaced(index, since, why=FULL):
    return pod(index, "Pending", unschedulable=why, unschedulable_since=since)


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def made(clock, *pods, workers=3, path="/checkpoints"):
    annotations = {names.INJECTED_ANNOTATION: "1", names.PREFIX + "scaling.mode": "off"}
    if path:
        annotations[names.PREFIX + "checkpoint.path"] = path
    cluster = MemoryCluster(clock, manifest(workers, annotations=annotations))
    cluster.pods = pods
    return cluster


def test_an_unplaced_pod_is_excused_once_it_is_sure(clock, history):
    """After a second without a node, with the scheduler's words; those that start are not."""
    cluster = made(clock, pod(0), pod(1, "Pending"), unplaced(2, clock()))
    cluster.awaited_ranks = (1, 2)
    assert look(cluster, history).delay == absent_pods.POLL_SECONDS
    assert cluster.excused == []
    clock.now += 2
    look(cluster, history)
    (told,) = cluster.excused
    assert told.ranks == (2,)
    assert told.reason == f"digits-worker-2: no node for it: {FULL}"
    look(cluster, history)
    assert len(cluster.excused) == 1, "the coordinator does not wait for it any more"
    cluster.awaited_ranks = ()
    assert look(cluster, history).delay > absent_pods.POLL_SECONDS


@pytest.mark.parametrize(
    ("reason", "excused"),
    [
        ("ImagePullBackOff", True),
        ("CrashLoopBackOff", True),
        ("CreateContainerConfigError", True),
        ("ContainerCreating", False),
        ("PodInitializing", False),
        ("Error", False),
        ("", False),
    ],
)
def test_containers_that_do_not_start(clock, reason, excused):
    """A container that waits for what will not be excuses its pod; one that is being made not."""
    late = pod(2, "Pending", containers=(ContainerStatus("pytorch", running=False, reason=reason),))
    assert bool(pending_pods.unavailable_reason(late, clock())) == excused
    runs = dataclasses.replace(late.containers[0], running=True, restarts=1)
    assert not pending_pods.unavailable_reason(
        dataclasses.replace(late, containers=(runs,)), clock()
    )


def test_awaited_pods_that_run_are_located(clock, history):
    """Those that the coordinator waits for; not one that ends, has no address, or is here."""
    here = pod(1, address="10.0.0.1")
    ends, comes = pod(2, address="10.0.0.2", deleting=True), pod(3)
    cluster = made(clock, pod(0, address="10.0.0.9"), here, ends, comes, workers=4)
    cluster.awaited_ranks = (1, 2, 3)
    look(cluster, history)
    assert cluster.located == [{"digits-worker-1": "10.0.0.1"}]
    cluster.awaited_ranks = (2, 3)
    look(cluster, history)
    assert len(cluster.located) == 1


def test_newcomers_are_located(clock, history):
    """A pod that would make the world larger, until it does: the first pod tells it where it is."""
    pods = [pod(i, address=f"10.0.0.{i}") for i in range(3)]
    cluster = made(clock, *pods, workers=3)
    cluster.nodes, cluster.trains_with_fewer = 2, True
    look(cluster, history)
    assert cluster.located == [{"digits-worker-2": "10.0.0.2"}]
    cluster.nodes = 3
    look(cluster, history)
    assert len(cluster.located) == 1


def test_ranks_follow_a_master(clock, history):
    """With a Master worker-0 is the second member."""
    worker = manifest(1)["spec"]["pytorchReplicaSpecs"]["Worker"]
    spec = {"pytorchReplicaSpecs": {"Master": worker, "Worker": worker}}
    cluster = MemoryCluster(clock, manifest(spec=spec))
    master = dataclasses.replace(pod(0), name="digits-master-0", replica_type="master")
    cluster.pods, cluster.awaited_ranks = (master, unplaced(0, clock() - 5)), (1,)
    look(cluster, history)
    assert [told.ranks for told in cluster.excused] == [(1,)]


def test_the_last_pod_makes_room_for_the_first(clock, history):
    """Ten seconds without a node and without a coordinator; once, and told."""
    cluster = made(clock, unplaced(0, clock() - 4), pod(1), pod(2))
    cluster.reachable = False
    assert look(cluster, history).delay == absent_pods.COORDINATOR_POLL_SECONDS
    assert cluster.deleted == []
    clock.now += 7
    for _ in range(2):
        look(cluster, history)
    assert cluster.deleted == ["digits-worker-2"]
    (message,) = [
        e.message for e in cluster.events if e.reason == names.EVENT_COORDINATOR_POD_PRIORITIZED
    ]
    assert message.startswith("digits-worker-2 gives its place to digits-worker-0")


def test_a_silent_node_is_not_asked_again_and_again(clock, history):
    """While no coordinator answers it is asked every few seconds, but for one on a silent node."""
    lost = pod(0, node="n0", ready=False)
    cluster = made(clock, lost, pod(1, node="n1"))
    cluster.reachable = False
    policy = {names.PREFIX + "failures.node-grace": "1h", names.PREFIX + "scaling.window": "200"}
    cluster.edit({"metadata": {"annotations": policy}})
    assert look(cluster, history).delay == absent_pods.COORDINATOR_POLL_SECONDS
    cluster.silent_nodes = {"n0": clock()}
    assert look(cluster, history).delay == IDLE_SECONDS


@pytest.mark.parametrize(
    ("first", "others", "path"),
    [
        (unplaced(0, 0.0), (), "/checkpoints"),
        (unplaced(0, 0.0), (pod(1),), ""),
        (unplaced(0, 0.0, "0/3 nodes: 3 node(s) had untolerated taint"), (pod(1),), "/c"),
        (pod(0, "Pending"), (pod(1),), "/checkpoints"),
        (unplaced(0, 0.0), (pod(1, deleting=True),), "/checkpoints"),
    ],
    ids=["nobody is there", "the only copy", "room is not what it lacks", "it starts", "ends"],
)  # fmt: skip
def test_nobody_makes_room_in_vain(clock, history, first, others, path):
    """Where it would not help, or would cost the last copy of the state, all pods stay."""
    cluster = made(clock, first, *others, path=path)
    cluster.reachable = False
    look(cluster, history)
    assert cluster.deleted == []
