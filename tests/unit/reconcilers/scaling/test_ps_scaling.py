# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob's workers and parameter servers are decided while it runs: live, and by suspensions."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from memory_cluster import Clock, Killed
from tensorflow_cluster import OURS, TensorFlowCluster, pod_of

from rover_kf.api import names
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.faults.limit_raises import CpuUse
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client.explain import explain
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.reconciler import Reconciler
from rover_kf.reconcilers.run_recording import new_run_record

DECIDED, SCALED = names.EVENT_SCALE_DECISION, names.EVENT_SCALED
VERIFIED, BACK = names.EVENT_SCALE_VERIFIED, names.EVENT_SCALE_ROLLED_BACK
AUTO = {"scaling.mode": "auto", "scaling.min": "1", "scaling.max": "3", "scaling.cooldown": "30"}


class Sized(TensorFlowCluster):
    """The operator makes the pods that the job states: at once where workers come and go, else
    when all of them are gone."""

    compute, wire, live = 1.0, 0.0, True
    """Seconds of a worker's step by itself, and for each worker that a server has; whether workers
    come and go."""
    late = ""
    """A pod that does not come."""

    def __init__(self, clock, **annotations):
        super().__init__(clock, **{**AUTO, **annotations})
        self.manifest["spec"]["enableDynamicWorker"] = self.live
        self.durable, self.course = 1, [self.counts]

    @property
    def counts(self):
        specs = self.manifest["spec"]["tfReplicaSpecs"]
        return specs["Worker"]["replicas"], specs["PS"]["replicas"]

    @property
    def suspended(self):
        return bool((self.manifest["spec"].get("runPolicy") or {}).get("suspend"))

    def seconds(self, workers, servers):
        return self.compute + self.wire * workers / servers

    def operator(self):
        """What it does after a look."""
        if self.suspended:
            self.pods = ()
            return
        if not self.pods:
            self.windows.clear()
        if self.live or not self.pods:
            workers, servers = self.counts
            each = {"chief": 1, "worker": workers, "ps": servers}
            self.pods = tuple(
                pod_of(kind, index)
                for kind, count in each.items()
                for index in range(count)
                if f"{kind}-{index}" != self.late
            )
            self.began = {pod.name: 1.0 for pod in self.pods}
            self.stories = {name: [] for name in self.began}
        if self.counts != self.course[-1]:
            self.course.append(self.counts)

    def look(self, history, times=1):
        """Train for a window where there are pods, then look twice; killed or not."""
        for _ in range(times):
            if self.pods:
                workers, servers = self.counts
                step = self.seconds(workers, servers) / workers
                self.law = lambda _, step=step: step
                self.train()
            else:
                self.clock.now += 2.0
            for _ in range(2):
                with contextlib.suppress(Killed):
                    Reconciler(self, history, clock=self.clock).run_once(OURS)
                self.operator()

    def told(self, reason):
        return [event.message for event in self.events if event.reason == reason]


class Fixed(Sized):
    """Its size changes while none of its pods is there."""

    live = False


@pytest.fixture
def alike(history):
    """A run of the same command that has had one, two and three workers, and two servers."""
    return lambda cluster: shown(cluster, history)


def shown(cluster, history):
    setups, windows = [], []
    for place, (workers, servers) in enumerate([(1, 1), (2, 1), (3, 1), (2, 2)]):
        setups.append(ServerSetup(100.0 * place, workers, servers, 0.2, 0.2))
        seconds = cluster.seconds(workers, servers)
        for begin in (100.0 * place, 100.0 * place + 50):
            steps = round(50 * workers / seconds)
            windows.append(Throughput(begin, begin + 50, 1, 1, steps, 0, 0.1, 64.0))
    first = new_run_record(cluster.get_job(OURS))
    history.upsert(
        dataclasses.replace(
            first, uid="before", outcome="succeeded", windows=tuple(windows), servers=tuple(setups)
        )
    )


def memory(cluster):
    return status_annotation.read(cluster.get_job(OURS))


def test_workers_come_by_themselves_and_are_verified(clock, history):
    """Nothing is known of a third one: it is tried live, at once, and kept; nobody is suspended."""
    cluster = Sized(clock)
    cluster.look(history, 8)
    assert cluster.course == [(2, 1), (3, 1)]
    (decided,), (scaled,) = cluster.told(DECIDED), cluster.told(SCALED)
    assert decided.startswith("Worker 2 -> 3: 2 -> 3 steps/s predicted")
    assert scaled == "Worker 2 -> 3 replicas"
    assert cluster.told(VERIFIED)[0].startswith("verified: 3 steps/s at 3 workers and 1 PS")
    assert cluster.posts == []
    assert not cluster.told(names.EVENT_SUSPENDED)
    assert cluster.tried == [{"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}}]
    found = explain(cluster, history, OURS)
    (one,) = [each for each in found.decisions if each.decision.applied]
    assert (one.decision.change, one.gain) == ("Worker 2 -> 3", pytest.approx(1.5, rel=0.05))
    assert found.unmanaged_reason == ""
    assert any("scale Worker 2 -> 3, applied: " in line for line in format_explanation(found, 20))
    (record,) = history.list(name=OURS.name)
    assert [(setup.workers, setup.servers) for setup in record.servers] == [(2, 1), (3, 1)]


def test_a_worker_that_brings_nothing_goes_again(clock, history):
    """And is not tried again soon."""
    cluster = Sized(clock)
    cluster.compute, cluster.wire = 0.0, 1.0
    cluster.look(history, 14)
    assert cluster.course[:3] == [(2, 1), (3, 1), (2, 1)]
    assert (3, 1) not in cluster.course[3:]
    assert cluster.told(BACK)[0].startswith("going back, Worker 3 -> 2: ")
    assert [(ban.size, ban.servers) for ban in memory(cluster).scaling.bans][:1] == [(3, 1)]
    found = explain(cluster, history, OURS)
    assert found.banned == ()
    assert any("3 workers with 1 PS" in line for line in format_explanation(found, 20))


def test_what_would_be_done_is_told_once(clock, history):
    """Mode recommend: one Event, no patch; off: nothing at all."""
    cluster = Sized(clock, **{"scaling.mode": "recommend"})
    cluster.look(history, 6)
    assert cluster.course == [(2, 1)]
    assert [line[:28] for line in cluster.told(DECIDED)] == ["would change Worker 2 -> 3: "]
    silent = Sized(clock, **{"scaling.mode": "off"})
    silent.look(history, 6)
    assert not silent.told(DECIDED)
    assert memory(silent).decision is None


def test_a_job_that_may_be_of_one_size_alone_is_told_nothing(clock, history):
    """As most are."""
    cluster = Fixed(clock, **{"scaling.min": "2", "scaling.max": "2"})
    cluster.look(history, 6)
    assert not [reason for reason in cluster.reasons() if reason.startswith("Scale")]
    assert memory(cluster).decision is None


def test_windows_count_once_all_workers_are_there(clock, history):
    """Those that the newcomer is not at work in are neither its nor the law's."""
    cluster = Sized(clock)
    cluster.late = "worker-2"
    cluster.look(history, 6)
    assert cluster.counts == (3, 1)
    assert memory(cluster).scaling.move.target == 3
    assert memory(cluster).scaling.settled.workers == 2
    assert len(history.list(name=OURS.name)[0].servers) == 1
    cluster.clock.now += 400
    cluster.look(history)
    assert "did not train together" in cluster.told(BACK)[0]


class Queued(Sized):
    """With Kueue's label."""

    def __init__(self, clock, **annotations):
        super().__init__(clock, **annotations)
        self.edit({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})


def test_others_that_have_its_size(clock, history):
    """Kueue; and the API server's own words."""
    cluster = Queued(clock)
    cluster.look(history, 5)
    assert cluster.course == [(2, 1)]
    assert "Kueue admitted it" in cluster.told(names.EVENT_SCALE_REFUSED)[0]
    refused = Sized(clock)
    refused.would_refuse = "exceeded quota: team"
    refused.look(history, 5)
    assert refused.course == [(2, 1)]
    (line,) = refused.told(names.EVENT_SCALE_REFUSED)
    assert "Worker 2 -> 3 would pay, and the API server would not take it: exceeded quota" in line


def quota(pods):
    spec = {"hard": {"pods": str(pods)}, "used": {"pods": "4"}}
    return NamespaceObjects(quotas=({"metadata": {"name": "few"}, "spec": {}, "status": spec},))


@pytest.mark.parametrize(("pods", "end"), [(4, (2, 1)), (5, (3, 1))])
def test_a_quota_bounds_it(clock, history, pods, end):
    """It stays, and the Event names the quota."""
    cluster = Sized(clock)
    cluster.bounds = quota(pods)
    cluster.look(history, 5)
    assert cluster.counts == end
    lines_told = cluster.told(names.EVENT_SCALE_REFUSED)
    assert [("ResourceQuota few leaves 0" in line) for line in lines_told] == [True] * (
        end < (3, 1)
    )


def test_cores_come_before_replicas(clock, history):
    """A hot PS is given more first; a worker comes once that was measured."""
    cluster = Sized(clock, **{"cpu.max": "400m"})
    cluster.cpu = {"digits-ps-0": CpuUse(0.2, 0.2, 0.9, 10.0)}
    cluster.look(history, 3)
    assert cluster.limits("cpu")["PS"] == "400m"
    assert cluster.counts == (2, 1)
    assert "what that brings is measured" in memory(cluster).decision.reason
    cluster.cpu = {}
    cluster.look(history, 5)
    assert cluster.counts == (3, 1)


def whole_life(kind, *, looks, most):
    """The course of a job whose writes are at most so many, so that each can be the last."""
    clock = Clock()
    cluster = kind(clock)
    with SqlHistory("sqlite://") as store:
        if kind is Fixed:
            shown(cluster, store)
        cluster.look(store, looks)
    assert cluster.calls <= most
    assert memory(cluster).scaling.verified
    return cluster.course


LIVE_CALLS, CYCLE_CALLS = 26, 30


@pytest.mark.parametrize("point", range(1, LIVE_CALLS + 1))
def test_a_controller_that_is_killed_anywhere_changes_it_once_live(clock, history, point):
    """Before or after any write: the next one completes what was begun and does nothing twice."""
    cluster = Sized(clock)
    cluster.kill_at = cluster.calls + point
    cluster.look(history, 10)
    assert cluster.course == [(2, 1), (3, 1)]
    assert set(cluster.told(SCALED)) == {"Worker 2 -> 3 replicas"}
    assert memory(cluster).scaling.move is None


@pytest.mark.parametrize("point", range(1, CYCLE_CALLS + 1))
def test_a_controller_that_is_killed_anywhere_goes_through_one_cycle(clock, history, alike, point):
    """The job is suspended, its pods end, and it goes on with another number; once."""
    cluster = Fixed(clock)
    alike(cluster)
    cluster.kill_at = cluster.calls + point
    cluster.look(history, 14)
    assert cluster.course == [(2, 1), (3, 1)]
    assert not cluster.suspended
    assert (cluster.deleted, cluster.posts) == ([], [])
    known = memory(cluster)
    assert (known.cycle_started_at, known.suspended, known.scaling.move) == (0.0, "", None)
    assert known.scaling.cycle_seconds > 0


def test_every_write_was_the_last_once():
    """The ranges of the tests above cover a change's whole life."""
    assert whole_life(Sized, looks=6, most=LIVE_CALLS) == [(2, 1), (3, 1)]
    assert whole_life(Fixed, looks=8, most=CYCLE_CALLS) == [(2, 1), (3, 1)]


def test_a_job_of_fixed_size_goes_through_the_cycle(clock, history, alike):
    """By what a run alike has shown: told, suspended, resumed with the number, verified."""
    cluster = Fixed(clock)
    alike(cluster)
    cluster.look(history, 12)
    assert cluster.course == [(2, 1), (3, 1)]
    (decided,) = cluster.told(DECIDED)
    assert decided.startswith("Worker 2 -> 3: 2 -> 3 steps/s predicted")
    assert "60 s a change through suspension" in decided
    assert "suspended: for Worker 2 -> 3" in cluster.told(names.EVENT_SUSPENDED)[0]
    assert "it goes on with Worker 2 -> 3" in cluster.told(names.EVENT_RESUMED)[0]
    assert cluster.told(SCALED) == ["Worker 2 -> 3 replicas"]
    assert cluster.told(VERIFIED)
    assert cluster.tried[-1]["spec"] == {
        "runPolicy": {"suspend": False},
        "tfReplicaSpecs": {"Worker": {"replicas": 3}},
    }


@pytest.mark.parametrize("live", [True, False])
def test_servers_are_added_through_the_cycle(clock, history, alike, monkeypatch, live):
    """Also where workers come and go: PS and chief are started with the addresses of all."""
    cluster = Fixed(clock, **{"scaling.ps-max": "2", "scaling.max": "2", "scaling.min": "2"})
    monkeypatch.setattr(cluster, "live", live)
    cluster.manifest["spec"]["enableDynamicWorker"] = live
    cluster.compute, cluster.wire = 0.2, 1.0
    alike(cluster)
    cluster.look(history, 14)
    assert cluster.course == [(2, 1), (2, 2)]
    assert cluster.told(SCALED) == ["PS 1 -> 2 replicas"]
    assert len(cluster.told(names.EVENT_SUSPENDED)) == 1
    assert memory(cluster).scaling.verified


def test_servers_that_bring_nothing_go_through_the_cycle_again(clock, history, alike):
    """The one way in which there are fewer."""
    cluster = Fixed(clock, **{"scaling.ps-max": "2", "scaling.max": "2", "scaling.min": "2"})
    cluster.compute, cluster.wire = 0.2, 1.0
    alike(cluster)
    cluster.compute, cluster.wire = 2.2, 0.0
    cluster.look(history, 24)
    assert cluster.course == [(2, 1), (2, 2), (2, 1)]
    assert cluster.told(BACK)[0].startswith("going back, PS 2 -> 1: ")
    assert memory(cluster).scaling.banned_setups(clock.now) == {(2, 2)}


@pytest.mark.parametrize("what", ["volatile", "nearly done", "queued"])
def test_who_does_not_go_through_the_cycle(clock, history, alike, what):
    """A state in memory alone, the last tenth of the work, a job that Kueue admitted."""
    cluster = Fixed(clock)
    alike(cluster)
    if what == "volatile":
        cluster.durable = None
    elif what == "nearly done":
        cluster.total = 60
    else:
        cluster.edit({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    cluster.look(history, 8)
    assert cluster.course == [(2, 1)]
    assert not cluster.told(names.EVENT_SUSPENDED)


def until_suspended(cluster, history):
    for _ in range(12):
        cluster.look(history)
        if cluster.suspended:
            return
    raise AssertionError("it was not suspended")


@pytest.mark.parametrize("what", ["refused", "recommend", "numbers", "resumed"])
def test_a_cycle_that_comes_to_nothing_ends_with_the_job_going_on(
    clock, history, alike, monkeypatch, what
):
    """The API server refuses the number, the permission is taken back, somebody sets another
    number or resumes it: it goes on with what it states, and is not suspended for it again."""
    cluster = Fixed(clock)
    alike(cluster)
    monkeypatch.setattr(cluster, "operator", lambda: None)
    until_suspended(cluster, history)
    monkeypatch.undo()
    end = (2, 1)
    if what == "refused":
        cluster.would_refuse = "denied by policy"
    elif what == "recommend":
        cluster.edit({"metadata": {"annotations": {"rover-kf.io/scaling.mode": "recommend"}}})
    elif what == "numbers":
        end = (1, 1)
        cluster.edit({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
        cluster.edit({"metadata": {"annotations": {"rover-kf.io/scaling.max": "1"}}})
    else:
        cluster.edit({"spec": {"runPolicy": {"suspend": False}}})
        cluster.edit({"metadata": {"annotations": {"rover-kf.io/scaling.mode": "recommend"}}})
    cluster.operator()
    cluster.look(history, 8)
    assert cluster.counts == end
    assert not cluster.suspended
    assert len(cluster.told(names.EVENT_SUSPENDED)) == 1
    assert memory(cluster).cycle_started_at == 0.0
    assert memory(cluster).scaling.move is None
    assert not cluster.told(SCALED)
    if what == "refused":
        assert "without Worker 2 -> 3: the API server" in cluster.told(names.EVENT_RESUMED)[0]
        assert memory(cluster).scaling.banned_setups(clock.now) == {(3, 1)}


def test_a_suspension_by_hand_stays(clock, history, alike):
    """Whatever was intended."""
    cluster = Fixed(clock)
    alike(cluster)
    cluster.look(history)
    cluster.edit({"spec": {"runPolicy": {"suspend": True}}})
    cluster.operator()
    cluster.look(history, 5)
    assert cluster.suspended
    assert cluster.course == [(2, 1)]


def test_a_job_whose_new_pods_find_no_place_goes_back(clock, history, alike, monkeypatch):
    """Its chief does not answer either: after ten minutes it goes through the cycle again."""
    cluster = Fixed(clock)
    alike(cluster)
    for _ in range(12):
        cluster.look(history)
        if cluster.counts == (3, 1):
            break
    lost = Sized.train
    monkeypatch.setattr(cluster, "reachable", False)
    monkeypatch.setattr(cluster, "train", lambda: setattr(clock, "now", clock.now + 60))
    cluster.look(history, 13)
    assert cluster.counts == (2, 1)
    assert "3 workers and 1 PS did not train together within" in cluster.told(BACK)[0]
    monkeypatch.setattr(cluster, "reachable", True)
    monkeypatch.setattr(cluster, "train", lambda: lost(cluster))
    cluster.look(history, 4)
    assert not cluster.suspended
    assert cluster.course == [(2, 1), (3, 1), (2, 1)]
