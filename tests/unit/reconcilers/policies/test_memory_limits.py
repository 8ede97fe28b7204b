# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Limits that were too low are raised in the template and in all pods, once a kill, and told."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from memory_cluster import KEY, Clock, Killed, MemoryCluster, manifest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults.limit_raises import MemoryLimitRaises, MemoryTrend, OomKill
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client.explain import explain
from rover_kf.elastic.resources.memory_limit import (
    MemoryRaiseLimits,
    RemainingWork,
    before_oom,
)
from rover_kf.injection import quantities
from rover_kf.reconcilers.policies import memory_limits
from rover_kf.reconcilers.reconciler import Reconciler

MIB = 1 << 20
MAX = f"{names.PREFIX}memory.max"
RAISED, KEPT = names.EVENT_MEMORY_RAISED, names.EVENT_MEMORY_NOT_RAISED


class Limited(MemoryCluster):
    """Its pods have limits, that they are killed at."""

    def __init__(self, clock: Clock, *, most="2Gi", limit="512Mi", requests=None):
        resources = {"limits": {"cpu": "1", "memory": limit}}
        if requests:
            resources["requests"] = requests
        given = manifest(annotations={MAX: most} if most else {})
        containers = given["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][
            "containers"
        ]
        containers[0]["resources"] = resources
        super().__init__(clock, given)
        self.kills: list[OomKill] = []
        self.trend: MemoryTrend | None = None
        self.nodes_have, self.can_resize, self.refuses = ("8Gi", "16Gi"), True, ""
        self.pods = tuple(_pod(index, limit) for index in range(2))
        self.resized: list[tuple[str, dict]] = []
        self.deleted: list[str] = []

    def node_sizes(self, resource):
        assert resource == "memory"
        return self.nodes_have

    def supports_pod_resize(self):
        return self.can_resize

    def resize_pod(self, _, pod, container, resources):
        self._point("resize")
        assert self.can_resize
        if self.refuses:
            raise errors.InputError(self.refuses)
        self.resized.append((pod.name, resources))
        changed = ContainerStatus(
            container, running=True, memory_limit=resources["limits"]["memory"]
        )
        self.become(dataclasses.replace(pod, containers=(changed,)))

    def delete_pod(self, _, pod):
        """The operator makes another one of the template."""
        self._point("delete")
        self.deleted.append(pod)
        index = int(pod[-1])
        self.become(dataclasses.replace(_pod(index, self.limit), uid=f"again-{index}"))

    @property
    def trainer(self):
        worker = self.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
        return worker["template"]["spec"]["containers"][0]

    @property
    def limit(self):
        return self.trainer["resources"]["limits"]["memory"]

    def become(self, pod):
        self.pods = tuple(pod if one.name == pod.name else one for one in self.pods)

    def kill(self, index=0, limit=None):
        """A process of a pod is killed at its limit; its launcher tells the coordinator."""
        pod = self.pods[index]
        at = limit or quantities.parse_bytes(pod.containers[0].memory_limit)
        self.kills.append(OomKill(pod.name, self.clock(), at))

    def kill_container(self, index=0, code=137):
        """All of the container is killed."""
        pod = self.pods[index]
        had = pod.containers[0]
        ended = dataclasses.replace(
            had, exit_code=code, termination_reason="OOMKilled", ended_at=self.clock(), restarts=1
        )
        self.become(dataclasses.replace(pod, containers=(ended,)))

    def _status(self, after) -> CoordinatorStatus:
        kills = tuple(self.kills)
        return dataclasses.replace(super()._status(after), oom_kills=kills, memory_trend=self.trend)

    def told(self, reason):
        return [event.message for event in self.events if event.reason == reason]


def _pod(index, limit):
    container = ContainerStatus(names.PYTORCH_CONTAINER, running=True, memory_limit=limit)
    name = f"digits-worker-{index}"
    return Pod(name, f"uid-{index}", "worker", index, "Running", containers=(container,))


@pytest.fixture
def look(history):
    def one(cluster, times=1):
        for _ in range(times):
            tick = Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)
            cluster.clock.now += 3
        return tick

    return one


def test_a_kill_raises_the_limit_of_all_replicas_in_place(clock, look):
    """Template first, then each pod; told with old, new and why; once, however often it is seen."""
    cluster = Limited(clock)
    cluster.kill(0)
    cluster.kill(1)
    look(cluster, 5)
    assert cluster.limit == "768Mi"
    assert [name for name, _ in cluster.resized] == ["digits-worker-0", "digits-worker-1"]
    (event,) = cluster.told(RAISED)
    assert "512Mi -> 768Mi, in place" in event
    assert "digits-worker-0, digits-worker-1 (memory.max is 2Gi)" in event
    assert cluster.told(KEPT) == []
    cluster.kill(1)
    look(cluster, 3)
    assert cluster.limit == "1536Mi"
    assert len(cluster.told(RAISED)) == 2


@pytest.mark.parametrize(
    ("requests", "asked", "patched"),
    [
        (None, None, {"limits", "requests"}),
        ({"cpu": "1", "memory": "512Mi"}, "768Mi", {"limits", "requests"}),
        ({"cpu": "1", "memory": "256Mi"}, "256Mi", {"limits"}),
    ],
)
def test_requests_stay_what_they_were_to_the_limit(clock, look, requests, asked, patched):
    """Equal or left out: equal, so that a Guaranteed pod stays one. Lower: as its owner stated."""
    cluster = Limited(clock, requests=requests)
    cluster.kill()
    look(cluster, 2)
    resources = cluster.trainer["resources"]
    assert resources["limits"] == {"cpu": "1", "memory": "768Mi"}
    assert (resources.get("requests") or {}).get("memory") == asked
    assert set(cluster.resized[0][1]) == patched


def test_the_cap_is_reached_and_told_once(clock, look):
    """Raised to memory.max at most; a kill there is refused with a Warning that says what to do."""
    cluster = Limited(clock, most="600Mi")
    cluster.kill()
    look(cluster, 2)
    assert cluster.limit == "600Mi"
    cluster.kill()
    look(cluster, 4)
    (refusal,) = cluster.told(KEPT)
    assert "stays 600Mi after a kill: memory.max is reached" in refusal
    assert next(event for event in cluster.events if event.reason == KEPT).warning


def test_without_the_annotation_nothing_is_raised(clock, look):
    """The Event names the annotation that would let it be."""
    cluster = Limited(clock, most="")
    cluster.kill()
    look(cluster, 3)
    assert cluster.limit == "512Mi"
    (refusal,) = cluster.told(KEPT)
    assert f"{MAX} is not there" in refusal


def test_the_largest_node_is_the_bound_beside_what_the_pod_needs_else(clock, look):
    """1 GiB of the node less 300 MiB of another container."""
    cluster = Limited(clock)
    cluster.nodes_have = ("512Mi", "1Gi")
    pod = cluster.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"].append({"name": "other", "resources": {"requests": {"memory": "300Mi"}}})
    cluster.kill()
    look(cluster, 2)
    assert quantities.parse_bytes(cluster.limit) == 724 * MIB
    cluster.kill()
    look(cluster, 2)
    assert "no node has more memory" in cluster.told(KEPT)[0]


def test_a_killed_container_counts_once(clock, look):
    """Under cgroup v2 all of the container is killed: its status tells, also long afterwards. One
    that ended well, and of which a child had been killed before, is called OOMKilled as well."""
    cluster = Limited(clock)
    cluster.kill_container(0, code=0)
    look(cluster, 2)
    assert cluster.told(RAISED) == []
    cluster.kill_container(0)
    look(cluster)
    cluster.kill_container(1)  # killed at the same time, and seen a look later
    look(cluster, 20)
    assert cluster.limit == "768Mi"
    assert len(cluster.told(RAISED)) == 1
    cluster.kill_container(1)
    look(cluster, 2)
    assert cluster.limit == "1536Mi"


def test_where_pods_cannot_be_resized_they_are_replaced_one_at_a_time(clock, look):
    """The next one goes when all stand again; before that none of those that keep the state."""
    cluster = Limited(clock)
    cluster.can_resize = False
    cluster.kill()
    look(cluster, 2)
    assert cluster.deleted == ["digits-worker-0"]
    assert "by replacing the pods" in cluster.told(RAISED)[0]
    new = cluster.pods[0]
    cluster.become(dataclasses.replace(new, phase="Pending", ready=False))
    look(cluster, 3)
    assert cluster.deleted == ["digits-worker-0"]
    cluster.become(new)
    look(cluster, 3)
    assert cluster.deleted == ["digits-worker-0", "digits-worker-1"]
    assert {pod.containers[0].memory_limit for pod in cluster.pods} == {"768Mi"}


@pytest.mark.parametrize(("reason", "after"), [("Infeasible", 1), ("Deferred", 11)])
def test_a_pod_whose_node_has_no_room_is_replaced(clock, look, reason, after):
    """At once if the node never can, after a while if it may."""
    cluster = Limited(clock)
    cluster.kill()
    look(cluster, 2)
    stuck = dataclasses.replace(cluster.pods[1], resize=reason, resize_since=clock())
    cluster.become(stuck)
    look(cluster, 1)
    assert cluster.deleted == ([] if after > 1 else ["digits-worker-1"])
    look(cluster, after)
    assert cluster.deleted == ["digits-worker-1"]


def test_a_refused_resize_is_told_once_and_kills_nothing(clock, look):
    """A quota would refuse the pod's successor, too."""
    cluster = Limited(clock)
    cluster.refuses = "exceeded quota: team"
    cluster.kill()
    look(cluster, 3)
    lines = {(event.message, event.at, event.sequence) for event in cluster.events
             if event.reason == KEPT and "exceeded quota" in event.message}  # fmt: skip
    assert len(lines) == 2, "one line a pod; the same line again is no new Event"
    assert cluster.deleted == []


@pytest.mark.parametrize("point", range(1, 12))
def test_a_controller_that_is_killed_anywhere_raises_once(clock, look, point):
    """Before or after any write: the next one completes what was begun and does nothing twice."""
    cluster = Limited(clock)
    cluster.kill(0)
    cluster.kill_at = point
    for _ in range(8):
        with contextlib.suppress(Killed):
            look(cluster)
    assert cluster.limit == "768Mi"
    assert {pod.containers[0].memory_limit for pod in cluster.pods} == {"768Mi"}


def test_the_run_is_remembered_with_the_raised_limit(clock, look, history):
    """The record has it, so that the recommender can."""
    cluster = Limited(clock)
    cluster.kill()
    look(cluster, 2)
    clock.now += 60
    look(cluster)
    (record,) = history.list(name=KEY.name)
    assert record.memory_raised == 768 * MIB
    assert any(event.reason == RAISED for event in record.events)


def test_only_jobs_that_may_be_raised_are_looked_at_often(clock, look):
    """Their launchers wait for it after a kill."""
    assert look(Limited(clock)).delay == memory_limits.POLL_SECONDS
    assert look(Limited(clock, most="")).delay > memory_limits.POLL_SECONDS


LEAK = MemoryTrend(memory=450.0 * MIB, per_second=float(MIB), rising=1.0, seconds=60.0)


@pytest.mark.parametrize(
    ("changes", "left", "raised"),
    [
        ({}, 3600.0, 2048),
        ({}, 300.0, 826),
        ({"per_second": 0.3 * MIB}, 100.0, None),
        ({"memory": 100.0 * MIB, "per_second": 0.1 * MIB}, 3600.0, None),
        ({"rising": 0.7}, 3600.0, None),
        ({"per_second": -1.0}, 3600.0, None),
        ({"memory": 600.0 * MIB, "per_second": 1000.0}, 3600.0, None),
        ({"memory": 600.0 * MIB, "per_second": 0.1 * MIB}, 300.0, 768),
        ({"memory": 490.0 * MIB, "per_second": 0.03 * MIB}, 3600.0, None),
        ({"memory": 500.0 * MIB, "per_second": 0.03 * MIB}, 3600.0, 768),
    ],
)
def test_a_limit_is_raised_before_it_is_reached(changes, left, raised):
    """By what is predicted for the end; not for what ends before, is far off, or falls again."""
    trend = dataclasses.replace(LEAK, **changes)
    state, work = MemoryLimitRaises("worker"), RemainingWork(left)
    found = before_oom(trend, state, 512 * MIB, MemoryRaiseLimits(2048 * MIB), work=work, now=100.0)
    assert found.limit == (None if raised is None else raised * MIB)
    assert bool(found.predicted_reason) == (raised is not None)


def test_foresight_keeps_to_the_bounds():
    """memory.max, the largest node, four raises, and some time after each."""
    state, work = MemoryLimitRaises("worker"), RemainingWork(3600.0)

    def wanted(bounds, state=state):
        return before_oom(LEAK, state, 512 * MIB, bounds, work=work, now=1000.0).limit

    assert wanted(MemoryRaiseLimits(700 * MIB)) == 700 * MIB
    assert wanted(MemoryRaiseLimits(2048 * MIB, 600 * MIB)) == 600 * MIB
    assert wanted(MemoryRaiseLimits(512 * MIB)) is None
    assert wanted(MemoryRaiseLimits(2048 * MIB), dataclasses.replace(state, raises=4)) is None
    assert (
        wanted(MemoryRaiseLimits(2048 * MIB), dataclasses.replace(state, raised_at=990.0)) is None
    )


def test_growth_is_raised_in_time_and_told(clock, history):
    """Nobody was killed: template and pods have more, once, and the Event says how it grows."""
    cluster = Limited(clock)
    cluster.trend = LEAK
    for _ in range(4):
        cluster.train()
        Reconciler(cluster, history, clock=clock).run_once(KEY)
    assert cluster.limit == "2Gi"
    assert {name for name, _ in cluster.resized} == {"digits-worker-0", "digits-worker-1"}
    (line,) = [event.message for event in cluster.events if event.reason == RAISED]
    assert "512Mi -> 2Gi, in place: it grows by 1.00 MiB/s since 60 s and would reach" in line
    (told,) = explain(cluster, history, cluster.key).memory
    assert (told.stated, told.limit, told.raises) == (512 * MIB, 2048 * MIB, 1)
    assert told.reason in line


def test_without_the_permission_growth_raises_nothing(clock, history):
    """memory.max is what allows it."""
    cluster = Limited(clock, most="")
    cluster.trend = LEAK
    cluster.train()
    Reconciler(cluster, history, clock=clock).run_once(KEY)
    assert cluster.limit == "512Mi"
    assert RAISED not in cluster.reasons()
