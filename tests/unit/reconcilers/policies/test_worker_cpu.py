# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers whose cores hold their steps or their loaders back are given more before more pods."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from memory_cluster import KEY, Killed, MemoryCluster, manifest

from rover_kf.api import codec, names
from rover_kf.api.faults.limit_raises import CpuUse, PodCpu
from rover_kf.api.jobs import ContainerStatus, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client.explain import explain
from rover_kf.injection import quantities
from rover_kf.reconcilers.reconciler import Reconciler

RAISED, KEPT = names.EVENT_CPU_RAISED, names.EVENT_CPU_NOT_RAISED
SHORT, SPARE = names.EVENT_WORKER_CPU_THROTTLED, names.EVENT_CPU_OVER_REQUESTED
AUTO = {"scaling.mode": "auto", "scaling.max": "2", "cpu.max": "4"}


def job(workers, cpu, **annotations):
    """Workers with a limit of so many cores, and no request."""
    told = {names.PREFIX + key: value for key, value in {**AUTO, **annotations}.items() if value}
    given = manifest(workers, annotations=told)
    (container,) = given["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"cpu": cpu, "memory": "2Gi"}}
    return given


class BusyWorkers(MemoryCluster):
    """A step of one pod takes its loader three seconds of cores, and half a second without."""

    loads, computes, peak = 3.0, 0.5, 0.0
    held_back, idle = 0.6, 0.02

    def __init__(self, clock, *, workers=1, cpu="1", **annotations):
        super().__init__(clock, job(workers, cpu, **annotations), total=100_000)
        self.law = lambda nodes: (self.waits + self.computes) / nodes
        self.cpu, self.resized, self.can_resize, self.refuses = {}, [], True, ""
        self.follow()

    @property
    def cores(self):
        return min(quantities.parse_cores(pod.containers[0].cpu_limit) for pod in self.pods)

    @property
    def waits(self):
        return max(0.0, self.loads / self.cores - self.computes)

    @property
    def limit(self):
        worker = self.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
        return worker["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]

    def follow(self):
        """Pods as the operator makes them: of what the template states now."""
        kept = self.pods[: self._replicas()]
        new = (_pod(index, self.limit) for index in range(len(kept), self._replicas()))
        self.pods = (*kept, *new)

    def look(self, history, windows=1):
        """Train for some windows, each followed by two looks, as a patch causes another one."""
        for _ in range(windows):
            self.follow()
            share = self.waits / (self.waits + self.computes)
            self.train()
            newest = dataclasses.replace(self.windows[-1], wait_fraction=share)
            self.windows[-1] = newest
            held = self.held_back if self.waits else self.idle
            use = CpuUse(self.cores, self.cores, held, 10.0)
            self.cpu = {pod.name: use for pod in self.pods}
            for _ in range(2):
                Reconciler(self, history, clock=self.clock).run_once(KEY)

    def told(self, reason):
        return [event.message for event in self.events if event.reason == reason]

    def call_coordinator(self, key, method, path, body=None, *, pod=None):
        found = super().call_coordinator(key, method, path, body, pod=pod)
        if method != "GET":
            return found
        status = codec.loads(CoordinatorStatus, found)
        told = tuple(PodCpu(name, use) for name, use in sorted(self.cpu.items()))
        return codec.dumps(dataclasses.replace(status, pod_cpus=told, cpu_peak=self.peak))

    def node_sizes(self, resource):
        return {"cpu": ("8",), "memory": ("8Gi",)}[resource]

    def supports_pod_resize(self):
        return self.can_resize

    def resize_pod(self, _, pod, container, resources):
        self._point("resize")
        assert container == "pytorch"
        limit = resources["limits"]["cpu"]
        assert resources["requests"] == {"cpu": limit}, "a request left out goes with the limit"
        self.resized.append((pod.name, limit))
        has = dataclasses.replace(pod.containers[0], cpu_limit=limit)
        changed = dataclasses.replace(pod, containers=(has,))
        self.pods = tuple(changed if one.name == pod.name else one for one in self.pods)


def _pod(index, limit):
    name = f"digits-worker-{index}"
    container = ContainerStatus("pytorch", running=True, memory_limit="2Gi", cpu_limit=limit)
    return Pod(
        name, f"uid-{name}", "worker", index, "Running", "10.0.0.1", "one", containers=(container,)
    )


def test_a_starved_worker_gets_cores_before_more_replicas(clock, history):
    """Its steps wait for a loader that its limit holds back: in place and in the template, until
    nothing waits; only then another replica is tried."""
    cluster = BusyWorkers(clock, **{"cpu.max": "8"})
    cluster.look(history, 3)
    assert (cluster.limit, cluster.resized) == ("2", [("digits-worker-0", "2")])
    assert cluster.resizes == [], "the second replica waits for what cores bring"
    (first,) = cluster.told(RAISED)
    assert first.startswith(
        "CPU limit of Worker replicas 1 -> 2, in place: digits-worker-0 had used up its 1 in 60% "
        "of the last 10 s, and 83% of a step waits for data, at 0.3 steps/s (cpu.max is 8)"
    )
    cluster.look(history, 4)
    assert cluster.cores == 4
    assert cluster.resizes == []
    reasons = [one.decision.reason for one in explain(cluster, history, KEY).decisions]
    assert any("the CPU limit was raised" in reason for reason in reasons)
    cluster.look(history, 12)
    assert cluster.limit == "8"
    assert cluster.resizes == [(1, 2)], "with cores enough replicas are reckoned with again"
    assert cluster.pods[1].containers[0].cpu_limit == "8", "a pod that is new has the template's"


def test_explain_tells_a_raise(clock, history):
    """What the owner stated, what it is now and what for."""
    cluster = BusyWorkers(clock)
    cluster.look(history, 4)
    found = explain(cluster, history, KEY)
    (one,) = found.cpu
    assert (one.replicas, one.stated, one.limit, one.raises) == ("Worker", 1000, 2000, 1)
    assert any(
        "CPU limit of Worker replicas 1 -> 2: digits-worker-0 had used up its 1" in line
        for line in format_explanation(found, 20)
    )


def test_all_pods_of_the_world_get_it(clock, history):
    """One template: the one that is short raises the limit of both."""
    cluster = BusyWorkers(clock, workers=2)
    cluster.look(history, 3)
    assert cluster.resized == [("digits-worker-0", "2"), ("digits-worker-1", "2")]
    assert "(2 of 2 Worker)" in cluster.told(RAISED)[0]


def test_cores_that_bring_nothing_are_raised_once(clock, history):
    """Another raise has to be earned by the job's pace at the same size."""
    cluster = BusyWorkers(clock, **{"scaling.max": "1"})
    cluster.law = lambda _: 1.0
    cluster.look(history, 12)
    assert cluster.limit == "2"
    (why,) = cluster.told(KEPT)
    assert "stays 2" in why
    assert "the last raise brought too little, 1 -> 1 steps/s" in why


@pytest.mark.parametrize(
    ("policy", "reason", "says"),
    [
        ({"scaling.mode": "recommend"}, SHORT, "would give Worker replicas 2 in place of 1"),
        ({"cpu.max": ""}, KEPT, "annotation rover-kf.io/cpu.max is not there"),
        ({"cpu.max": "1"}, KEPT, "cpu.max is reached"),
        ({"scaling.mode": "off"}, None, ""),
    ],
)
def test_without_leave_it_is_told_once(clock, history, policy, reason, says):
    """And replicas are gone to without waiting for cores that nobody gives."""
    cluster = BusyWorkers(clock, **policy)
    cluster.look(history, 8)
    assert (cluster.resized, cluster.limit) == ([], "1")
    told = cluster.told(SHORT) + cluster.told(KEPT)
    assert len(told) == (1 if reason else 0)
    assert not reason or (cluster.told(reason) == told and says in told[0])
    auto = policy.get("scaling.mode", "auto") == "auto"
    assert bool(cluster.resizes) == auto


@pytest.mark.parametrize(
    ("held", "loads", "raised"), [(0.05, 3.0, 0), (0.12, 3.0, 1), (0.12, 0.0, 0)]
)
def test_only_cores_that_are_used_up_are_what_a_loader_lacks(clock, history, held, loads, raised):
    """Steps that wait for slow storage get none; those whose loader is held back a little do, and
    a loop that does not wait is left alone with as little."""
    cluster = BusyWorkers(clock, **{"scaling.max": "1", "cpu.max": "2"})
    cluster.held_back, cluster.loads = held, loads
    cluster.law, cluster.idle = (lambda _: 3.0), held
    cluster.look(history, 4)
    assert len(cluster.told(RAISED)) == raised


def test_without_resize_the_template_alone_is_raised(clock, history):
    """A restart of all for cores is not worth it: the Event says how to give them to all."""
    cluster = BusyWorkers(clock, **{"scaling.max": "1"})
    cluster.can_resize = False
    cluster.look(history, 6)
    assert (cluster.limit, cluster.resized, cluster.deleted) == ("2", [], [])
    (told,) = cluster.told(RAISED)
    assert "suspend and resume the job to give it to all" in told


@pytest.mark.parametrize("point", range(1, 14))
def test_a_controller_that_is_killed_anywhere_raises_as_one_that_is_not(clock, history, point):
    """Before or after any write: the next one completes what was begun and does nothing twice."""
    cluster = BusyWorkers(clock, **{"cpu.max": "2", "scaling.max": "1"})
    cluster.kill_at = cluster.calls + point
    for _ in range(8):
        with contextlib.suppress(Killed):
            cluster.look(history)
    assert (cluster.limit, cluster.cores) == ("2", 2.0)
    assert {limit for _, limit in cluster.resized} == {"2"}


def test_cores_that_nobody_uses_are_told_once_and_kept(clock, history):
    """Ten windows of the same world in which the busiest pod kept 1.2 of 8 cores busy."""
    cluster = BusyWorkers(clock, cpu="8", **{"scaling.max": "1", "cpu.max": ""})
    cluster.peak = 1.2
    cluster.look(history, 9)
    assert cluster.told(SPARE) == []
    cluster.look(history, 6)
    (told,) = cluster.told(SPARE)
    assert told.startswith(
        "Worker replicas ask for 8 of CPU each, and none kept more than 1200m busy in 2 min: "
        "1380m would do"
    )
    assert (cluster.limit, cluster.resized) == ("8", [])


@pytest.mark.parametrize(("peak", "cpu"), [(1.2, "2"), (0.0, "8"), (0.05, "500m")])
def test_a_modest_ask_is_not_told(clock, history, peak, cpu):
    """Less than twice what would do, nothing known of what is used, and less than half a core."""
    cluster = BusyWorkers(clock, cpu=cpu, **{"scaling.max": "1", "cpu.max": ""})
    cluster.peak, cluster.loads = peak, 0.0
    cluster.look(history, 14)
    assert cluster.told(SPARE) == []
