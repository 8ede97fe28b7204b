# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A parameter server that the kernel holds back is found, told, and given more cores in place."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest
from memory_cluster import Killed
from tensorflow_cluster import OURS, TensorFlowCluster

from rover_kf.api import names
from rover_kf.api.faults.limit_raises import CpuUse
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client.explain import explain
from rover_kf.injection import quantities
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.reconciler import Reconciler

PS = "digits-ps-0"
RAISED, KEPT, SHORT = (
    names.EVENT_CPU_RAISED,
    names.EVENT_CPU_NOT_RAISED,
    names.EVENT_SERVER_CPU_THROTTLED,
)
AUTO = {"scaling.mode": "auto", "cpu.max": "1"}


class HotServer(TensorFlowCluster):
    """Each step takes its PS half a second of a core, and is made in a tenth where it has them."""

    needs, least, more_cpu = 0.5, 0.1, {}

    def __init__(self, clock, **annotations):
        super().__init__(clock, **{**AUTO, **annotations})
        self.law = lambda _: max(self.needs / self.cores, self.least)

    @property
    def cores(self):
        (container,) = self.pods[-1].containers
        return quantities.parse_cores(container.cpu_limit)

    def look(self, history, windows=1):
        """Train for some windows, each followed by two looks, as a patch causes another one."""
        for _ in range(windows):
            self.train()
            busy = self.needs / self.law(1)
            held = 0.9 if busy >= 0.99 * self.cores else 0.05
            self.cpu = {PS: CpuUse(busy, self.cores, held, 10.0), **self.more_cpu}
            for _ in range(2):
                Reconciler(self, history, clock=self.clock).run_once(OURS)

    def told(self, reason):
        return [event.message for event in self.events if event.reason == reason]


def test_a_hot_server_is_given_more_until_it_is_hot_no_more(clock, history):
    """In the template and in the pod, in place, as far as the cap; nothing else is touched."""
    cluster = HotServer(clock)
    cluster.look(history, 12)
    assert cluster.limits("cpu") == {"Chief": "200m", "Worker": "200m", "PS": "1"}
    assert cluster.resized == [(PS, "800m"), (PS, "1")]
    assert (cluster.deleted, cluster.posts) == ([], [])
    first, second = cluster.told(RAISED)
    assert first.startswith(
        "CPU limit of PS replicas 200m -> 800m, in place: digits-ps-0 had used up its 200m in 90% "
        "of the last 10 s, at 0.4 steps/s (cpu.max is 1)"
    )
    assert "800m -> 1, in place" in second
    (full,) = cluster.told(KEPT)
    assert "stays 1," in full
    assert "cpu.max is reached" in full
    assert not any(reason.startswith("Scale") for reason in cluster.reasons())


class HotWorkers(HotServer):
    """What a step takes lies with two workers as well; the slower side is waited for."""

    worker_needs = 0.4

    def __init__(self, clock, **annotations):
        super().__init__(clock, **annotations)
        self.law = lambda _: max(
            self.needs / self.cores, self.worker_needs / self.worker_cores, self.least
        )

    @property
    def worker_cores(self):
        (container,) = self.pods[1].containers
        return quantities.parse_cores(container.cpu_limit)

    def look(self, history, windows=1):
        for _ in range(windows):
            busy = self.worker_needs / self.law(1)
            held = 0.9 if busy >= 0.99 * self.worker_cores else 0.05
            use = CpuUse(busy, self.worker_cores, held, 10.0)
            self.more_cpu = {"digits-worker-0": use, "digits-worker-1": use}
            super().look(history)


def test_servers_and_workers_are_raised_one_after_the_other(clock, history):
    """Where a step takes both of them: what the first raise brings is measured before the next."""
    cluster = HotWorkers(clock)
    cluster.look(history, 24)
    assert cluster.limits("cpu") == {"Chief": "200m", "Worker": "1", "PS": "1"}
    kinds = [line.split()[3] for line in cluster.told(RAISED)]
    assert kinds == ["PS", "Worker", "PS", "Worker"]
    times = [event.at for event in cluster.events if event.reason == RAISED]
    assert all(later - sooner > 20.0 for sooner, later in itertools.pairwise(times))
    assert {pod for pod, _ in cluster.resized} == {PS, "digits-worker-0", "digits-worker-1"}


def test_workers_that_are_short_are_told_apart(clock, history):
    """By mode recommend: their own Event, what they would get, and nothing is changed."""
    cluster = HotWorkers(clock, **{"scaling.mode": "recommend"})
    cluster.needs = 0.05
    cluster.look(history, 6)
    (told,) = cluster.told(names.EVENT_WORKER_CPU_THROTTLED)
    assert "(2 of 2 Worker)" in told
    assert "would give Worker replicas 800m in place of 200m" in told
    assert cluster.told(SHORT) == []
    assert cluster.limits("cpu")["Worker"] == "200m"


def test_explain_says_what_other_servers_would_bring(clock, history):
    """By the setups that the job itself has had: before the raise, and after it."""
    cluster = HotServer(clock, **{"cpu.max": "16"})
    cluster.least = 1.0
    cluster.look(history, 2)
    assert explain(cluster, history, OURS).servers == ()
    cluster.look(history, 6)
    found = explain(cluster, history, OURS)
    told = {effect.description: effect for effect in found.servers}
    assert told["PS of 1.6 cores"].gain > 1
    assert any("PS of 1.6 cores: " in line for line in format_explanation(found, 20))
    (raised,) = found.cpu
    assert (raised.replicas, raised.stated, raised.limit) == ("PS", 200, 800)
    (record,) = history.list(name=OURS.name)
    assert [setup.server_cores for setup in record.servers] == [0.2, 0.8]


@pytest.mark.parametrize(("other", "told"), [(0.02, True), (0.15, False)])
@pytest.mark.parametrize("mode", ["auto", "recommend"])
def test_work_that_lies_on_one_server_is_told(clock, history, other, told, mode):
    """One of two PS is held back: where the other one is hardly busy more cores are not all that
    would help, and the Event says what spreads the variables."""
    cluster = HotServer(clock, **{"cpu.max": "800m", "scaling.mode": mode})
    cluster.edit({"spec": {"tfReplicaSpecs": {"PS": {"replicas": 2}}}})
    cluster.pods = (dataclasses.replace(cluster.pods[-1], name="digits-ps-1"), *cluster.pods)
    cluster.stories["digits-ps-1"], cluster.began["digits-ps-1"] = [], 1.0
    cluster.more_cpu = {"digits-ps-1": CpuUse(other, 0.2, 0.0, 10.0)}
    cluster.look(history, 3)
    line = cluster.told(RAISED if mode == "auto" else SHORT)[0]
    assert "digits-ps-0 (1 of 2 PS) had used up its 200m" in line
    assert ("no other PS kept more than 20m busy; a partitioner" in line) is told


def test_a_server_that_has_enough_is_left_alone(clock, history):
    """Once it is held back no more there is no further raise, and nothing is told."""
    cluster = HotServer(clock, **{"cpu.max": "16"})
    cluster.least = 1.0
    cluster.look(history, 12)
    assert cluster.limits("cpu")["PS"] == "800m"
    assert cluster.told(KEPT) == []


def test_a_raise_that_brought_nothing_is_the_last(clock, history):
    """Held back, but not what the job waits for."""
    cluster = HotServer(clock, **{"cpu.max": "16"})
    cluster.law = lambda _: 1.0
    cluster.needs = 16.0
    cluster.look(history, 12)
    assert cluster.limits("cpu")["PS"] == "800m"
    (why,) = cluster.told(KEPT)
    assert "stays 800m" in why
    assert "the last raise brought too little, 1 -> 1 steps/s" in why


@pytest.mark.parametrize(
    ("policy", "reason", "says"),
    [
        ({"scaling.mode": "recommend"}, SHORT, "would give PS replicas 800m in place of 200m"),
        ({"scaling.mode": "auto", "cpu.max": None}, KEPT, "annotation rover-kf.io/cpu.max is not"),
        ({"scaling.mode": "off"}, None, ""),
    ],
)
def test_the_mode_is_obeyed(clock, history, policy, reason, says):
    """Without leave it is told once, or not at all, and nothing is changed."""
    cluster = HotServer(clock, **{key: value for key, value in policy.items() if value})
    if "cpu.max" in policy:
        del cluster.manifest["metadata"]["annotations"]["rover-kf.io/cpu.max"]
    cluster.look(history, 6)
    assert (cluster.resized, cluster.limits("cpu")["PS"]) == ([], "200m")
    lines = cluster.told(SHORT) + cluster.told(KEPT)
    assert len(lines) == (1 if reason else 0)
    assert not reason or (cluster.told(reason) == lines and says in lines[0])


def test_the_largest_node_bounds_it(clock, history, monkeypatch):
    """Less what the sidecar asks for; then the Event says so."""
    sizes = {"cpu": ("300m", "500m"), "memory": ("8Gi",)}
    monkeypatch.setattr(HotServer, "node_sizes", lambda _, resource: sizes[resource])
    cluster = HotServer(clock)
    cluster.look(history, 8)
    assert cluster.limits("cpu")["PS"] == "500m"
    assert any("no node has more cores" in line for line in cluster.told(KEPT))


def test_without_resize_the_template_alone_is_raised(clock, history):
    """The Training Operator may fail a TFJob that loses a pod: the Event says what to do."""
    cluster = HotServer(clock)
    cluster.can_resize = False
    cluster.look(history, 6)
    assert cluster.limits("cpu")["PS"] == "800m"
    assert (cluster.deleted, cluster.resized) == ([], [])
    (told,) = cluster.told(RAISED)
    assert "suspend and resume the job" in told


class Replaced(HotServer):
    """On a Kubernetes that cannot resize pods; the operator ends and makes them, all at once."""

    def __init__(self, clock, **annotations):
        super().__init__(clock, **annotations)
        self.can_resize, self.durable, self.ended = False, 1, self.pods
        self.courses = [[self.limits("cpu")["PS"]]]
        """Limits of the PS that trained, by program."""

    @property
    def suspended(self):
        return bool((self.manifest["spec"].get("runPolicy") or {}).get("suspend"))

    def operator(self):
        """What it does after a look."""
        if self.suspended:
            self.pods = ()
        elif not self.pods:
            *others, server = self.ended
            (had,) = server.containers
            has = dataclasses.replace(had, cpu_limit=self.limits("cpu")["PS"])
            self.pods = (*others, dataclasses.replace(server, containers=(has,)))
            self.windows.clear()
            self.courses.append([has.cpu_limit])

    def course(self, history, looks=12):
        for _ in range(looks):
            with contextlib.suppress(Killed):
                if self.pods:
                    self.look(history)
                else:
                    Reconciler(self, history, clock=self.clock).run_once(OURS)
            self.operator()


@pytest.mark.parametrize("point", range(0, 30, 2))
def test_without_resize_the_job_goes_through_the_suspend_cycle(clock, history, point):
    """Suspended once its state is on storage, resumed when all pods are gone, by a controller that
    is killed at any point, too: the new ones have the cores, and it is not done again."""
    cluster = Replaced(clock, **{"cpu.max": "800m"})
    cluster.kill_at = cluster.calls + point if point else None
    cluster.course(history)
    assert cluster.courses == [["200m"], ["800m"]]
    assert not cluster.suspended
    assert (cluster.deleted, cluster.resized) == ([], [])
    assert len(cluster.told(names.EVENT_SUSPENDED)) <= 1
    if not point:
        (why,) = cluster.told(names.EVENT_SUSPENDED)
        assert "digits-ps-0 cannot be resized" in why
        assert len(cluster.told(names.EVENT_RESUMED)) == 1
    memory = status_annotation.read(cluster.get_job(OURS))
    assert (memory.cycle_started_at, memory.suspended) == (0.0, "")


@pytest.mark.parametrize("what", ["volatile", "nearly done", "queued", "by hand"])
def test_who_does_not_go_through_it(clock, history, what):
    """A state in memory alone, too little work left, a job that Kueue admitted; and nobody's
    suspension but ours ends by itself."""
    cluster = Replaced(clock, **{"cpu.max": "800m"})
    if what == "volatile":
        cluster.durable = None
    elif what == "nearly done":
        cluster.total = 60
    elif what == "queued":
        cluster.edit({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    else:
        cluster.edit({"spec": {"runPolicy": {"suspend": True}}})
        cluster.pods = ()
    cluster.course(history, 6)
    assert cluster.courses == [["200m"]]
    assert cluster.suspended == (what == "by hand")
    assert cluster.limits("cpu")["PS"] == ("200m" if what == "by hand" else "800m")


def test_a_refused_resize_and_a_full_node_are_told_once(clock, history):
    """A quota's own words; a node that never has room."""
    cluster = HotServer(clock)
    cluster.refuses = "exceeded quota: team"
    cluster.look(history, 5)
    lines = {(event.message, event.at) for event in cluster.events if event.reason == KEPT}
    assert len(lines) == 1
    assert "exceeded quota" in lines.pop()[0]
    stuck = dataclasses.replace(cluster.pods[-1], resize="Infeasible", node="one")
    cluster.pods, cluster.events, cluster.refuses = (*cluster.pods[:-1], stuck), [], ""
    cluster.look(history, 3)
    assert sum("one has no room for it" in line for line in cluster.told(KEPT)) == 1


def test_nothing_follows_from_a_server_that_starts_or_that_is_silent(clock, history):
    """Loading TensorFlow takes all cores, too: windows of steps have to have closed."""
    cluster = HotServer(clock)
    cluster.cpu = {PS: CpuUse(0.2, 0.2, 1.0, 10.0)}
    for _ in range(3):
        Reconciler(cluster, history, clock=clock).run_once(OURS)
    cluster.silent_pods.add(PS)
    cluster.look(history, 4)
    assert cluster.limits("cpu")["PS"] == "200m"


@pytest.mark.parametrize("point", range(1, 14))
def test_a_controller_that_is_killed_anywhere_raises_as_one_that_is_not(clock, history, point):
    """Before or after any write: the next one completes what was begun and does nothing twice."""
    cluster = HotServer(clock, **{"cpu.max": "800m"})
    cluster.kill_at = cluster.calls + point
    for _ in range(8):
        with contextlib.suppress(Killed):
            cluster.look(history)
    assert cluster.limits("cpu")["PS"] == "800m"
    assert cluster.cores == 0.8
    assert {name for name, _ in cluster.resized} == {PS}
