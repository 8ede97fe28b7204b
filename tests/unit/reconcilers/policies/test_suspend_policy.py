# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job below its fewest pods, looked at until it is suspended."""

from __future__ import annotations

import dataclasses
import json

from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.reconcilers.reconciler import Reconciler


def made(clock, **annotations):
    policy = {
        "failures.suspend-after": "60s",
        "scaling.mode": "off",
        "scaling.min": "2",
        "scaling.window": "200",
        "checkpoint.path": "/checkpoints",
        **annotations,
    }
    keyed = {f"{names.PREFIX}{key}": value for key, value in policy.items()}
    cluster = MemoryCluster(clock, manifest(2, annotations=keyed))
    cluster.pods = tuple(
        Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Running", node=f"n{index}")
        for index in range(2)
    )
    return cluster


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def suspended(cluster):
    return bool((cluster.manifest["spec"].get("runPolicy") or {}).get("suspend"))


def told(cluster, reason):
    return [event.message for event in cluster.events if event.reason == reason]


def crashes(cluster):
    waits = (ContainerStatus("pytorch", running=False, restarts=7, reason="CrashLoopBackOff"),)
    first, second = cluster.pods
    cluster.pods = (first, dataclasses.replace(second, containers=waits))


def test_suspended_with_the_reason(clock, history):
    """A pod that crashes again and again leaves one of two: after the policy's time, not before,
    the job is suspended in one patch with its reason; the look before said when to look again."""
    cluster = made(clock)
    cluster.step, cluster.durable = 130, 120
    look(cluster, history)
    crashes(cluster)
    assert look(cluster, history).delay == 30.0
    clock.now += 50
    assert look(cluster, history).delay == 10.0
    assert not suspended(cluster)
    clock.now += 10
    look(cluster, history)
    assert suspended(cluster)
    (message,) = told(cluster, names.EVENT_SUSPENDED)
    assert message.startswith("suspended: 1 of at least 2 pods could train for 60 s;")
    assert "goes on from step 120 on storage" in message
    assert "digits-worker-1: its container pytorch does not start: CrashLoopBackOff" in message
    remembered = json.loads(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION])
    assert remembered["suspended"] == message[:240]

    cluster.pods = ()
    clock.now += 1000
    look(cluster, history)
    cluster.edit({"spec": {"runPolicy": {"suspend": False}}})
    look(cluster, history)
    assert not suspended(cluster), "resumed: its pods have the policy's time to come"
    remembered = json.loads(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION])
    assert remembered["suspended"] == ""


def test_state_in_memory_alone_is_not_given_up(clock, history):
    """Nothing durable: the pods stay, and it is said once what to do."""
    cluster = made(clock)
    cluster.step = 130
    crashes(cluster)
    for _ in range(4):
        look(cluster, history)
        clock.now += 60
    assert not suspended(cluster)
    (message,) = told(cluster, names.EVENT_NOT_SUSPENDED)
    assert "step 130 is in its pods' memory alone" in message


def test_a_silent_nodes_pod_does_not_train(clock, history):
    """A pod whose node is not heard counts as none, though its phase is Running."""
    cluster = made(clock, **{"failures.node-grace": "1h"})
    cluster.step, cluster.durable = 130, 120
    first, second = cluster.pods
    cluster.pods = (first, dataclasses.replace(second, ready=False))
    cluster.silent_nodes = {"n1": clock()}
    look(cluster, history)
    clock.now += 61
    look(cluster, history)
    assert suspended(cluster)
