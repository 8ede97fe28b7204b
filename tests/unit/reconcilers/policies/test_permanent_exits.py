# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Launchers' ends under OnFailure: a verdict ends the job, one that cannot go on its pod."""

from __future__ import annotations

import dataclasses

import pytest
from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.reconcilers.reconciler import Reconciler

VERDICT = "the budget of 10 restarts is spent; last: rank 0: error: ValueError: no"


class Ending(MemoryCluster):
    """Its launchers end, and the kubelet starts them again."""

    def __init__(self, clock, *, policy="OnFailure", limit=None):
        given = manifest(spec={"runPolicy": {"backoffLimit": limit}} if limit is not None else {})
        if policy:
            given["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = policy
        super().__init__(clock, given)
        self.pods = tuple(_pod(index) for index in range(2))
        self.failed, self.deleted = False, []

    @property
    def backoff_limit(self):
        return (self.manifest["spec"].get("runPolicy") or {}).get("backoffLimit")

    def delete_pod(self, _, pod):
        self._point("delete")
        self.deleted.append(pod)
        self.pods = tuple(
            dataclasses.replace(one, deleting=True) if one.name == pod else one for one in self.pods
        )

    def _status(self, after):
        found = super()._status(after)
        if not self.failed:
            return found
        return dataclasses.replace(found, phase="failed", verdict=VERDICT)


def _pod(index, code=None):
    trainer = ContainerStatus(names.PYTORCH_CONTAINER, running=True, exit_code=code)
    name = f"digits-worker-{index}"
    return Pod(name, f"{index}-uid-uid", "worker", index, "Running", containers=(trainer,))


@pytest.fixture
def look(history):
    def one(cluster, times=1):
        for _ in range(times):
            Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)
            cluster.clock.now += 3

    return one


def told(cluster, reason):
    return [event.message for event in cluster.events if event.reason == reason]


@pytest.mark.parametrize(
    ("policy", "limit", "after"),
    [
        ("OnFailure", None, 0), ("", None, 0), ("Always", 100, 0),
        ("ExitCode", None, None), ("Never", 3, 3),
    ],
)  # fmt: skip
def test_a_verdict_ends_a_job_that_would_be_restarted_for_ever(clock, look, policy, limit, after):
    """By its backoffLimit, told once with the verdict; where exit code 1 ends it, nothing."""
    cluster = Ending(clock, policy=policy, limit=limit)
    look(cluster)
    assert cluster.backoff_limit == limit
    cluster.failed = True
    look(cluster, 3)
    assert cluster.backoff_limit == after
    events = told(cluster, names.EVENT_RESTART_BUDGET_EXHAUSTED)
    assert len(events) == (after == 0)
    assert all(VERDICT in message for message in events)


def test_a_pod_that_cannot_go_on_is_replaced(clock, look):
    """Once, though its container runs again and its last end is seen at every look."""
    cluster = Ending(clock)
    cluster.pods = (_pod(0), _pod(1, names.EXIT_RETRY))
    look(cluster, 3)
    assert cluster.deleted == ["digits-worker-1"]
    (message,) = told(cluster, names.EVENT_POD_LOST)
    assert "its launcher ended with 138" in message


def test_pods_that_cannot_go_on_are_replaced_one_at_a_time(clock, look):
    """The next one when the first one's successor runs: they keep each other's state."""
    cluster = Ending(clock)
    cluster.pods = tuple(_pod(index, names.EXIT_RETRY) for index in range(2))
    look(cluster, 3)
    assert cluster.deleted == ["digits-worker-0"]
    cluster.pods = (dataclasses.replace(_pod(0), uid="new"), cluster.pods[1])
    look(cluster, 3)
    assert cluster.deleted == ["digits-worker-0", "digits-worker-1"]


@pytest.mark.parametrize(
    ("policy", "code"), [("ExitCode", 138), ("OnFailure", 1), ("OnFailure", 143)]
)
def test_other_ends_are_left_to_the_restart_policy(clock, look, policy, code):
    """Under ExitCode the Training Operator replaces the pod itself."""
    cluster = Ending(clock, policy=policy)
    cluster.pods = (_pod(0), _pod(1, code))
    look(cluster, 2)
    assert cluster.deleted == []
