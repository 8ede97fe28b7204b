# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob's servers: what their own sidecars tell is heard, and none of them is ever deleted."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from memory_cluster import Killed
from tensorflow_cluster import DIED, OURS, TensorFlowCluster

from rover_kf.api import names
from rover_kf.api.faults.limit_raises import OomKill
from rover_kf.reconcilers.observer import StandaloneStatusReader
from rover_kf.reconcilers.reconciler import Reconciler

MIB = 1 << 20


@pytest.fixture
def cluster(clock):
    return TensorFlowCluster(clock)


@pytest.fixture
def reconcilers(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock)


def died(cluster):
    return [event.message for event in cluster.events if event.reason == DIED]


def test_what_servers_tell_is_on_the_job_once(cluster, reconcilers):
    """Warnings of each server's own sidecar; that all is well there is not told."""
    cluster.tell("digits-worker-1", "WorldFormed", warning=False)
    cluster.tell("digits-worker-1")
    cluster.tell("digits-ps-0")
    for _ in range(3):
        reconcilers.run_once(OURS)
    assert sorted(died(cluster)) == ["digits-ps-0: it died", "digits-worker-1: it died"]
    assert set(cluster.asked) == {"digits-worker-0", "digits-worker-1", "digits-ps-0"}
    assert cluster.reasons().count("WorldFormed") == 0
    cluster.tell("digits-ps-0")
    reconcilers.run_once(OURS)
    assert len(died(cluster)) == 3


def test_a_pod_that_was_made_anew_begins_its_story_anew(cluster, reconcilers):
    """Its first event has the number of one that was told of its predecessor."""
    cluster.tell("digits-ps-0")
    reconcilers.run_once(OURS)
    cluster.stories["digits-ps-0"], cluster.began["digits-ps-0"] = [], 2.0
    cluster.tell("digits-ps-0")
    reconcilers.run_once(OURS)
    assert len(died(cluster)) == 2


def test_a_server_that_does_not_answer_holds_up_nobody(cluster, reconcilers):
    """The others are heard, and it is when it answers again."""
    cluster.silent_pods.add("digits-ps-0")
    cluster.tell("digits-ps-0")
    cluster.tell("digits-worker-0")
    reconcilers.run_once(OURS)
    assert died(cluster) == ["digits-worker-0: it died"]
    cluster.silent_pods.clear()
    reconcilers.run_once(OURS)
    assert died(cluster)[1:] == ["digits-ps-0: it died"]


def test_a_server_killed_for_memory_gets_more_in_place(cluster, reconcilers):
    """The template of its type and the pod itself; the other types keep what they have."""
    cluster.kills["digits-ps-0"] = OomKill("digits-ps-0", cluster.clock(), 512 * MIB)
    for _ in range(2):
        reconcilers.run_once(OURS)
        cluster.clock.now += 3
    assert cluster.limits() == {"Chief": "512Mi", "Worker": "512Mi", "PS": "768Mi"}
    assert cluster.resized == [("digits-ps-0", "768Mi")]
    (told,) = [one.message for one in cluster.events if one.reason == names.EVENT_MEMORY_RAISED]
    assert "PS replicas 512Mi -> 768Mi, in place" in told


def test_without_resize_no_pod_is_deleted_for_it(cluster, reconcilers):
    """The Training Operator may fail a TFJob that loses a pod: the Event says what to do."""
    cluster.can_resize = False
    cluster.kills["digits-ps-0"] = OomKill("digits-ps-0", cluster.clock(), 512 * MIB)
    for _ in range(3):
        reconcilers.run_once(OURS)
        cluster.clock.now += 3
    assert cluster.limits()["PS"] == "768Mi"
    assert (cluster.deleted, cluster.resized) == ([], [])
    (told,) = [one.message for one in cluster.events if one.reason == names.EVENT_MEMORY_RAISED]
    assert "suspend and resume the job" in told


def test_the_first_pod_is_the_chiefs_and_never_a_servers(cluster, reconcilers):
    """A PS without a node is no reason to end another pod, and no round waits for it."""
    waiting = dataclasses.replace(
        cluster.pods[-1],
        phase="Pending",
        node="",
        unschedulable="Insufficient cpu",
        unschedulable_since=1.0,
    )
    chief = dataclasses.replace(
        cluster.pods[0],
        phase="Pending",
        node="",
        unschedulable="Insufficient cpu",
        unschedulable_since=1.0,
    )
    cluster.reachable = False
    for pods in ((*cluster.pods[:-1], waiting), (chief, *cluster.pods[1:])):
        cluster.pods = pods
        reconcilers.run_once(OURS)
    assert cluster.deleted == []


def test_a_run_of_a_tfjob_is_recorded(cluster, reconcilers, history):
    """With its kind, and its end."""
    reconcilers.run_once(OURS)
    cluster.train()
    cluster.phase = "Succeeded"
    reconcilers.run_once(OURS)
    record = history.get("uid-1")
    assert (record.signature.kind, record.outcome) == ("TFJob", "succeeded")
    status = json.loads(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION])
    assert "recorded" in status["emitted"]


@pytest.mark.parametrize("mode", ["off", "recommend"])
def test_the_chief_is_told_of_no_other_size(clock, history, mode):
    """Its world is the chief alone, whatever workers there are; nothing is decided about them."""
    cluster = TensorFlowCluster(clock, **{"scaling.mode": mode})
    for _ in range(4):
        cluster.train()
        Reconciler(cluster, history, clock=clock).run_once(OURS)
    assert (cluster.posts, cluster.resizes) == ([], [])
    assert not any(reason.startswith("Scale") for reason in cluster.reasons())


def test_so_many_are_asked_at_a_look_parameter_servers_first(cluster, monkeypatch):
    """A look at a large job ends in bounded time."""
    monkeypatch.setattr("rover_kf.reconcilers.observer.MAX_PODS", 2)
    found = StandaloneStatusReader(cluster).fetch(OURS, frozenset({"ps", "worker"}), cluster.pods)
    assert list(found) == ["digits-ps-0", "digits-worker-0"]


def test_a_job_below_what_it_needs_counts_its_servers(clock, history):
    """With failures.suspend-after a job without its PS is suspended: nothing trains then."""
    cluster = TensorFlowCluster(clock, **{"failures.suspend-after": "30s"})
    cluster.sealed, cluster.durable = 10, 10
    reconcilers = Reconciler(cluster, history, clock=clock)
    reconcilers.run_once(OURS)
    cluster.pods = cluster.pods[:-1]
    reconcilers.run_once(OURS)
    clock.now += 31
    reconcilers.run_once(OURS)
    assert cluster.manifest["spec"]["runPolicy"]["suspend"] is True
    assert any("3 of at least 4 pods" in event.message for event in cluster.events)


def lose(cluster, name):
    """The node of a pod falls silent; each pod has one of its own."""
    cluster.pods = tuple(
        dataclasses.replace(pod, node=f"of-{pod.name}", ready=pod.name != name)
        for pod in cluster.pods
    )
    cluster.silent_nodes = {f"of-{name}": cluster.clock() - 60}
    cluster.silent_pods = {name}


@pytest.mark.parametrize("name", ["digits-ps-0", "digits-worker-1"])
@pytest.mark.parametrize("point", range(1, 8))
def test_all_hear_of_a_server_that_is_gone_with_its_node(clock, history, point, name):
    """They would wait for an answer for as long as TCP does. Wherever the controller is killed, the
    pod is not gone without all others having heard; told twice it counts once there."""
    cluster = TensorFlowCluster(clock)
    lose(cluster, name)
    (uid,) = [pod.uid for pod in cluster.pods if pod.name == name]
    wanted = {"", "digits-ps-0", "digits-worker-0", "digits-worker-1"} - {name}
    cluster.kill_at = point
    for _ in range(2):
        with contextlib.suppress(Killed):
            Reconciler(cluster, history, clock=clock).run_once(OURS)
        heard = {pod for pod, _ in cluster.renewed}
        assert heard == wanted or name in {pod.name for pod in cluster.pods}
    assert cluster.calls >= point
    assert {told for _, told in cluster.renewed} == {uid}
    assert name not in {pod.name for pod in cluster.pods}


def test_of_a_lost_chief_nobody_hears(cluster, reconcilers):
    """Whoever takes its place begins anew, with new connections."""
    cluster.reachable = False
    lose(cluster, "digits-chief-0")
    reconcilers.run_once(OURS)
    assert cluster.renewed == []
    assert "digits-chief-0" not in {pod.name for pod in cluster.pods}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("digits-ps-0", ["", "digits-worker-0", "digits-worker-1"]),
        ("digits-worker-1", ["digits-ps-0"]),
    ],
)
def test_workers_that_come_and_go_are_clients_of_the_servers(cluster, reconcilers, name, told):
    """Of a lost PS all others hear; of a lost worker the PS alone, which is connected to it."""
    cluster.manifest["spec"]["enableDynamicWorker"] = True
    lose(cluster, name)
    reconcilers.run_once(OURS)
    assert [pod for pod, _ in cluster.renewed] == told
