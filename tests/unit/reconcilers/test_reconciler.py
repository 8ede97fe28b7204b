# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One look after another at a job: scaling, events, refusals, records; and every crash between."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
from memory_cluster import KEY, Clock, Killed, MemoryCluster, manifest

from rover_kf.api import codec, names, termination_log
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import ContainerStatus, JobKey, ObservedJob, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client.explain import explain
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.reconciler import Reconciler, run_foreground
from rover_kf.scaling import throughput


def controller(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock)


def look(cluster, history, times=1, windows=1):
    """Train a window, look at the job; each look is a controller that has just started."""
    tick = None
    for _ in range(times):
        cluster.train(windows)
        tick = controller(cluster, history).run_once(KEY)
    return tick


def remembered(cluster):
    return json.loads(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION])


def test_job_that_profits_is_scaled_once_and_verified(cluster, history):
    """Throughput grows with replicas: 2 -> 3 announced, patched, verified, then left alone."""
    look(cluster, history, times=12)
    assert cluster.resizes == [(2, 3)]
    assert cluster.posts == [3]
    ours = [r for r in cluster.reasons() if r.startswith("Scale")]
    assert ours == [names.EVENT_SCALE_DECISION, names.EVENT_SCALED, names.EVENT_SCALE_VERIFIED]
    record = history.get("uid-1")
    assert record is not None
    applied = [decision for decision in record.decisions if decision.applied]
    assert [(d.current, d.target) for d in applied] == [(2, 3)]
    assert applied[0].predicted_gain == pytest.approx(1.4, rel=0.01)


def test_a_status_out_of_bounds_is_one_event(cluster, history):
    """However often the coordinator reports it; nothing of it reaches the record."""
    honest = cluster._status
    cluster._status = lambda after: dataclasses.replace(honest(after), step=2**62)
    look(cluster, history, times=3)
    assert cluster.reasons().count("StatusRejected") == 1
    assert history.get("uid-1").steps == 0


def test_job_that_does_not_profit_is_rolled_back_and_left_alone(clock, history):
    """A third replica that slows the job down is taken back, and not tried again soon."""
    given = manifest(annotations={f"{names.PREFIX}scaling.min": "2"})
    cluster = MemoryCluster(clock, given, law=lambda k: {2: 1.0, 3: 1.4}[k])
    look(cluster, history, times=30)
    assert cluster.resizes == [(2, 3), (3, 2)]
    assert cluster.reasons().count(names.EVENT_SCALE_ROLLED_BACK) == 1
    assert remembered(cluster)["scaling"]["bans"][0]["size"] == 3


def calls_of_a_whole_life():
    """How many writes a scale-up with its verification makes, so that each can be the last."""
    cluster = MemoryCluster(Clock())
    look(cluster, _Nowhere(), times=8)
    return cluster.calls - cluster.reasons().count(names.EVENT_HISTORY_UNAVAILABLE)


class _Nowhere:
    """A history that is away the whole time."""

    def __getattr__(self, name):
        from rover_kf import errors  # noqa: PLC0415 - only this stand-in needs it

        def fail(*_, **__):
            raise errors.HistoryUnavailable(name)

        return fail


@pytest.mark.parametrize("point", range(1, 27))
def test_controller_killed_anywhere_acts_once(point, clock, history):
    """Killed before or after any POST, patch or Event, the next controller completes the change
    without a second one: one resize, one coordinator order of 3, told at least once."""
    cluster = MemoryCluster(clock)
    cluster.happen("WorldFormed")
    cluster.kill_at = point
    killed = False
    for _ in range(12):
        cluster.train()
        try:
            controller(cluster, history).run_once(KEY)
        except Killed:
            killed = True
    assert killed == (point <= cluster.calls)
    assert cluster.resizes == [(2, 3)]
    assert set(cluster.posts) == {3}
    assert cluster.expected == 3
    assert {names.EVENT_SCALED, names.EVENT_SCALE_VERIFIED} <= set(cluster.reasons())
    assert cluster.reasons().count("WorldFormed") <= 2
    assert remembered(cluster)["scaling"]["move"] is None


def test_every_crash_point_was_tried():
    """The range of the test above covers every write of a scale-up's life."""
    assert calls_of_a_whole_life() <= 26


def test_history_that_is_away_does_not_stop_scaling(clock):
    """No database: the job is scaled all the same."""
    cluster = MemoryCluster(clock)
    look(cluster, _Nowhere(), times=8)
    assert cluster.resizes == [(2, 3)]


def test_events_are_copied_once(cluster, history):
    """Each event of the coordinator's story appears once on the job, also from a new story."""
    cluster.happen("WorldFormed")
    cluster.happen("CheckpointDurable")
    look(cluster, history, times=3)
    cluster.happen("Recovered")
    look(cluster, history, times=2)
    copied = [r for r in cluster.reasons() if not r.startswith("Scale")]
    assert copied == ["WorldFormed", "CheckpointDurable", "Recovered"]
    cluster.story, cluster.coordinator_events = cluster.clock(), []
    cluster.happen("WorldFormed", "after the first pod was replaced")
    look(cluster, history, times=2)
    assert cluster.events[-1].message == "after the first pod was replaced"


def test_conflict_with_the_operator_is_not_a_conflict(cluster, history):
    """A status update of the operator between read and patch does not cost a tick."""
    cluster.operator_touches = True
    look(cluster, history)
    assert remembered(cluster)["step"] > 0


def test_conflict_with_a_person_is_planned_anew(cluster, history):
    """Replicas edited while a change is decided: the edit stands, the coordinator follows it."""
    look(cluster, history)
    original = cluster.patch_job

    def edited_first(key, patch, **version):
        cluster.patch_job = original
        cluster.edit({"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}})
        return original(key, patch, **version)

    cluster.patch_job = edited_first
    look(cluster, history)
    assert cluster.resizes == []
    look(cluster, history)
    assert cluster.posts[-1] in (1, 2)
    assert cluster.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] in (1, 2)


def test_order_that_the_coordinator_refuses_is_given_up(cluster, history):
    """A coordinator with tighter bounds: no patch of replicas, and the change is dropped."""
    cluster.most = 2
    look(cluster, history, times=4)
    assert remembered(cluster)["scaling"]["move"]["target"] == 3
    cluster.clock.now += 301
    controller(cluster, history).reconcile(KEY)
    assert remembered(cluster)["scaling"]["move"] is None
    assert cluster.resizes == []


def test_size_beyond_the_coordinators_bounds_does_not_stop_the_looks(clock, history):
    """Replicas set by hand above what the coordinator takes: all else goes on."""
    cluster = MemoryCluster(clock, manifest(annotations={f"{names.PREFIX}scaling.mode": "off"}))
    cluster.most = 2
    look(cluster, history)
    cluster.edit({"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}}})
    cluster.happen("WorldFormed")
    controller(cluster, history).reconcile(KEY)
    assert remembered(cluster)["last_event"] == 1


def test_manual_scale_is_announced(clock, history):
    """Replicas that a person sets are made known to the coordinator, also with scaling off."""
    cluster = MemoryCluster(clock, manifest(annotations={f"{names.PREFIX}scaling.mode": "off"}))
    look(cluster, history)
    cluster.edit({"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}})
    controller(cluster, history).reconcile(KEY)
    assert cluster.posts == [3]
    assert cluster.resizes == []


def test_recommend_says_but_does_not_act(clock, history):
    """Mode recommend: one Event for one advice, no patch of replicas, no order."""
    given = manifest(annotations={f"{names.PREFIX}scaling.mode": "recommend"})
    cluster = MemoryCluster(clock, given)
    look(cluster, history, times=8)
    assert cluster.resizes == cluster.posts == []
    assert cluster.reasons().count(names.EVENT_SCALE_DECISION) == 1
    assert "would go to 3" in next(e.message for e in cluster.events)
    advice = [one for one in remembered(cluster)["recent"] if one["action"] == "scale"]
    assert [(one["current"], one["target"], one["applied"]) for one in advice] == [(2, 3, False)]


def test_the_same_advice_is_written_as_progress_is(clock, history):
    """Of many jobs progress is written now and then; an advice that goes on is no more than that,
    and one that is another one is written at once."""
    given = manifest(annotations={f"{names.PREFIX}scaling.mode": "recommend"})
    cluster = MemoryCluster(clock, given)
    many = Reconciler(cluster, history, clock=clock, jobs=lambda: 5000)
    for _ in range(4):
        cluster.train()
        many.run_once(KEY)
    before = cluster.patches
    for _ in range(10):
        cluster.train()
        many.run_once(KEY)
    assert cluster.patches == before
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.max": "4"}}})
    cluster.train()
    many.run_once(KEY)
    assert remembered(cluster)["decision"]["target"] == 4


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"spec": {"elasticPolicy": {"metrics": [{}]}}}, "HPA"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "Kueue"),
        ({"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}, "managedBy"),
        ({"spec": {"runPolicy": {"suspend": True}}}, "suspended"),
    ],
)
def test_jobs_that_are_not_ours_are_left_alone_with_an_event(changes, word, clock, history):
    """HPA, Kueue, another manager, suspended: no patch of replicas, one Event that says why."""
    cluster = MemoryCluster(clock, manifest(**changes))
    look(cluster, history, times=6)
    assert cluster.resizes == []
    told = [e for e in cluster.events if e.reason == names.EVENT_SCALE_REFUSED]
    assert len(told) == 1
    assert word in told[0].message


def a_job(kind="PyTorchJob", *, masters=0, labels=None, **spec):
    manifest = {"metadata": {"labels": labels or {}}, "spec": spec}
    replicas = {"worker": 2, **({"master": masters} if masters else {})}
    return ObservedJob(JobKey("team", "digits", kind), "u", "1", manifest, replicas, "Running")


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (a_job(), ""),
        (a_job(elasticPolicy={"minReplicas": 1}), ""),
        (a_job(masters=1), ""),
        (a_job(runPolicy={"managedBy": "kubeflow.org/training-operator"}), ""),
        (a_job("TFJob"), "TFJob fails when workers go"),
        (a_job(elasticPolicy={"metrics": [{}]}), "HPA"),
        (a_job(elasticPolicy={"minReplicas": 1}, masters=1), "Master"),
        (a_job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}), "managedBy"),
        (a_job(labels={"kueue.x-k8s.io/queue-name": "q"}), "Kueue"),
    ],
)
def test_whose_size_is_ours_to_change(job, word):
    """By what the job itself says."""
    why = policy_source.refusal(job)
    assert bool(why) == bool(word)
    assert word in why


def quota(name, left):
    status = {"hard": {"requests.cpu": "8"}, "used": {"requests.cpu": str(8 - left)}}
    return {"metadata": {"name": name}, "status": status}


def elsewhere():
    return tuple(
        Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Running", node="m")
        for index in range(2)
    )


def hpa(kind, target):
    reference = {"kind": kind, "name": target}
    return {"metadata": {"name": "their-hpa"}, "spec": {"scaleTargetRef": reference}}


def machine(cores, **spec):
    conditions = [{"type": "Ready", "status": "True"}]
    has = {"cpu": str(cores), "memory": "64Gi", "pods": "10"}
    status = {"conditions": conditions, "allocatable": has}
    return {"metadata": {"name": "n"}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("around", "told", "resizes"),
    [
        (
            {"bounds": NamespaceObjects(quotas=(quota("team-a", 0),))},
            "ResourceQuota team-a leaves 0",
            [],
        ),
        ({"bounds": NamespaceObjects(quotas=(quota("team-a", 1),))}, "", [(2, 3)]),
        ({"bounds": NamespaceObjects(autoscalers=(hpa("PyTorchJob", "digits"),))}, "their-hpa", []),
        ({"bounds": NamespaceObjects(autoscalers=(hpa("PyTorchJob", "others"),))}, "", [(2, 3)]),
        ({"bounds": NamespaceObjects(autoscalers=(hpa("Deployment", "digits"),))}, "", [(2, 3)]),
        ({"machines": (machine(0),)}, "nodes have room for 0 more of its pods (cpu 1", []),
        ({"machines": (machine(1),)}, "", [(2, 3)]),
        ({"machines": (machine(4, unschedulable=True),)}, "nodes have room for 0 more", []),
        ({"would_refuse": "denied by policy spot-only"}, "denied by policy spot-only", []),
    ],
)
def test_what_bounds_a_change_is_named(around, told, resizes, clock, history):
    """Quota, nodes, somebody else's autoscaler, the API server's own word in a dry run: with too
    little of one the job stays and one Event names it; with enough it goes."""
    cluster = MemoryCluster(clock)
    cluster.pods = elsewhere()
    for name, value in around.items():
        setattr(cluster, name, value)
    look(cluster, history, times=6)
    assert cluster.resizes == resizes
    lines = [e.message for e in cluster.events if e.reason == names.EVENT_SCALE_REFUSED]
    assert len(lines) == bool(told)
    assert told in "".join(lines)
    assert cluster.tried[0] == {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}}
    explained = [one.decision.bound for one in explain(cluster, history, KEY).decisions]
    assert any(bound and bound in "".join(lines) for bound in explained) == bool(told)


def test_a_step_that_fits_is_made_where_the_best_one_does_not(clock, history):
    """Four would be best and there is room for one more: three, which pay by themselves."""
    given = manifest(annotations={f"{names.PREFIX}scaling.max": "4"})
    cluster = MemoryCluster(clock, given)
    cluster.machines, cluster.pods = (machine(1),), elsewhere()
    look(cluster, history, times=3)
    assert cluster.resizes == [(2, 3)]
    assert any("room for 1 more" in one.bound for one in history.get("uid-1").decisions)


def test_policy_edits_count_from_the_next_look(clock, history):
    """Mode, bounds, and what time is worth are read anew at each look."""
    cluster = MemoryCluster(clock, manifest(annotations={f"{names.PREFIX}scaling.mode": "off"}))
    look(cluster, history, times=4)
    assert cluster.resizes == []
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.mode": "auto"}}})
    look(cluster, history, times=3)
    assert cluster.resizes == [(2, 3)]
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.max": "2"}}})
    look(cluster, history, times=4)
    assert cluster.resizes == [(2, 3), (3, 2)]
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.max": "3"}}})
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.deadline": "1h"}}})
    look(cluster, history, times=5)
    assert cluster.resizes[2:] == [(2, 3)], "late as it is it needs all three"


def test_master_with_elastic_policy_is_refused(clock, history):
    """A Master beside an elasticPolicy: the two disagree on what a node is."""
    given = manifest(spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}})
    specs = given["spec"]["pytorchReplicaSpecs"]
    specs["Master"] = {**specs["Worker"], "replicas": 1}
    cluster = MemoryCluster(clock, given)
    look(cluster, history, times=4)
    assert cluster.resizes == []
    assert "Master" in cluster.events[0].message


def test_wrong_annotation_turns_scaling_off_with_an_event(cluster, history):
    """An annotation edited into nonsense: scaling off, one Event with the key, no crash."""
    cluster.edit({"metadata": {"annotations": {f"{names.PREFIX}scaling.mode": "turbo"}}})
    look(cluster, history, times=4)
    assert cluster.resizes == []
    told = [e.message for e in cluster.events if e.reason == names.EVENT_SCALE_REFUSED]
    assert len(told) == 1
    assert "scaling.mode" in told[0]


def test_unreachable_coordinator_changes_nothing(cluster, history):
    """No answer: no decision, no patch of replicas, looked at again soon."""
    cluster.reachable = False
    tick = look(cluster, history, times=3)
    assert tick.decision is None
    assert tick.delay is not None
    assert cluster.resizes == []


def test_intention_is_dropped_when_the_coordinator_stays_away(cluster, history):
    """A change that was only written down is given up after five minutes without an answer."""
    look(cluster, history)
    cluster.kill_at = cluster.calls + 2  # the intention is written, the order is not given
    with pytest.raises(Killed):
        look(cluster, history)
    assert remembered(cluster)["scaling"]["move"]["target"] == 3
    cluster.reachable = False
    cluster.clock.now += 301
    controller(cluster, history).reconcile(KEY)
    assert remembered(cluster)["scaling"]["move"] is None
    assert cluster.resizes == []


def test_deleted_job_is_recorded_as_deleted(cluster, history):
    """Gone before its end: the record says so, also if this controller never saw the job."""
    look(cluster, history)
    cluster.manifest = None
    assert controller(cluster, history).reconcile(KEY) is None
    assert history.get("uid-1").outcome == "deleted"


def test_name_used_again_closes_the_old_run(cluster, history):
    """A new job of the same name: the old run ends as deleted, the new one is its own record."""
    look(cluster, history)
    cluster.uid = "uid-2"
    look(cluster, history)
    assert history.get("uid-1").outcome == "deleted"
    assert history.get("uid-2").outcome == "running"


def test_finished_job_is_recorded_once(cluster, history):
    """At the end the record is complete, one Event says so, and nothing more is ever done."""
    look(cluster, history, times=2)
    cluster.phase = "Succeeded"
    assert controller(cluster, history).reconcile(KEY) is None
    assert history.get("uid-1").outcome == "succeeded"
    patches = cluster.patches
    assert controller(cluster, history).reconcile(KEY) is None
    assert cluster.patches == patches
    assert cluster.reasons().count(names.EVENT_RECORDED) == 1


def test_a_look_fits_one_model_at_most(cluster, history, monkeypatch):
    """What others count on, what is decided, and what bounds it go by one model; a look without a
    new window needs none."""
    fits = []
    fit = throughput.fit
    monkeypatch.setattr(throughput, "fit", lambda windows: fits.append(1) or fit(windows))
    watcher = controller(cluster, history)
    for _ in range(12):
        cluster.train()
        before = len(fits)
        watcher.run_once(KEY)
        assert len(fits) <= before + 1
    assert cluster.resizes == [(2, 3)]
    assert len(fits) > 2
    before = len(fits)
    watcher.run_once(KEY)
    assert len(fits) == before


def test_idle_looks_write_nothing(cluster, history):
    """Looks without news leave the object alone: no loop of writes and watch events."""
    look(cluster, history, times=10)
    controller(cluster, history).reconcile(KEY)
    patches = cluster.patches
    for _ in range(5):
        cluster.clock.now += 0.1
        controller(cluster, history).reconcile(KEY)
    assert cluster.patches == patches


def test_annotation_is_bounded(cluster, history):
    """The status annotation never exceeds 4 KiB."""
    for round_ in range(60):
        cluster.pods = (
            Pod(
                f"digits-worker-{round_}",
                f"{round_:08d}",
                "worker",
                0,
                "Running",
                containers=(ContainerStatus("pytorch", running=True, reason="OOMKilled"),),
            ),
        )
        look(cluster, history)
    text = cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION]
    assert len(text.encode()) <= 4096


def test_memory_kill_is_told_once(cluster, history):
    """A container killed for memory: one Event a kill, with what to do."""
    container = ContainerStatus("pytorch", running=True, restarts=1, reason="OOMKilled")
    cluster.pods = (
        Pod("digits-worker-1", "abcd", "worker", 1, "Running", containers=(container,)),
    )
    look(cluster, history, times=3)
    told = [e for e in cluster.events if e.reason == names.EVENT_PROCESS_FAILED]
    assert len(told) == 1
    assert "raise its memory limit" in told[0].message


@pytest.mark.parametrize(
    ("ends", "told"), [({}, True), ({"deleting": True}, False), ({"reasons": ("Evicted",)}, False)]
)
def test_a_container_that_was_killed_for_no_known_reason_is_told(cluster, history, ends, told):
    """The kubelet does not always hear that a kill was for memory. At a pod's end a kill is no
    news."""
    container = ContainerStatus("pytorch", running=False, restarts=1, exit_code=137, reason="Error")
    killed = Pod("digits-worker-1", "abcd", "worker", 1, "Running", containers=(container,), **ends)
    cluster.pods = (killed,)
    look(cluster, history, times=3)
    messages = [e.message for e in cluster.events if e.reason == names.EVENT_PROCESS_FAILED]
    assert len(messages) == told
    assert all("container pytorch (restart 1) was killed, and" in one for one in messages)


def test_lost_pod_is_told_once(cluster, history):
    """A pod that Kubernetes ends: one Event, with what Kubernetes says and what would help."""
    cluster.pods = (
        Pod(
            "digits-worker-1",
            "abcd",
            "worker",
            1,
            "Failed",
            reasons=("Evicted", "TerminationByKubelet"),
            message="The node was low on resource: memory.",
        ),
    )
    look(cluster, history, times=3)
    (told,) = [e for e in cluster.events if e.reason == names.EVENT_POD_LOST]
    assert told.message.startswith("digits-worker-1: evicted: was evicted by its node")
    assert told.message.endswith("(The node was low on resource: memory.)")


def test_shrinking_waits_for_the_drain(clock, history):
    """Down: the coordinator is told first; pods are taken only when the ranks have left."""
    given = manifest(workers=3, annotations={f"{names.PREFIX}scaling.max": "2"})
    cluster = MemoryCluster(clock, given)
    look(cluster, history)
    assert cluster.posts == [2]
    assert cluster.resizes == []
    cluster.nodes = 2
    controller(cluster, history).reconcile(KEY)
    assert cluster.resizes == [(3, 2)]


def test_watch_reports_each_look_and_ends_with_the_job(cluster, tmp_path):
    """The foreground watch calls back with what it saw and returns the finished job."""
    seen = []

    def on_tick(job, status, decision):
        seen.append((job.phase, status.step, decision))
        cluster.phase = "Succeeded"

    cluster.train()
    with SqlHistory(f"sqlite:///{tmp_path}/watched.db") as history:
        done = run_foreground(
            cluster,
            KEY,
            history,
            on_reconcile=on_tick,
            stop=threading.Event(),
            every=0.01,
            clock=cluster.clock,
        )
    assert done is not None
    assert done.phase == "Succeeded"
    assert [phase for phase, _, _ in seen] == ["Running", "Succeeded"]


def test_the_end_is_told_although_the_coordinator_is_gone(cluster, history):
    """The coordinator's last line may never be read: the end is on the job all the same, once."""
    look(cluster, history, times=2)
    cluster.phase = "Succeeded"
    cluster.reachable = False
    look(cluster, history, times=3, windows=0)
    assert cluster.reasons().count(names.EVENT_FINISHED) == 1


def test_admission_is_told_once(clock, history):
    """A webhook writes no Events: the first look tells what it did, and why a command stayed."""
    told = {names.INJECTED_ANNOTATION: "hash", names.NOT_REWRITTEN_ANNOTATION: '{"Worker":"why"}'}
    cluster = MemoryCluster(clock, manifest(annotations=told))
    look(cluster, history, times=4)
    assert cluster.reasons().count(names.EVENT_INJECTED) == 1
    assert cluster.reasons().count(names.EVENT_NOT_REWRITTEN) == 1


def test_a_labelled_job_that_was_not_injected_is_told_of_once(clock, history):
    """Admitted while no webhook answered, it runs as a plain job: its owner is told, and how."""
    cluster = MemoryCluster(clock, manifest())
    cluster.reachable = False
    look(cluster, history, times=4)
    assert cluster.reasons().count(names.EVENT_NOT_INJECTED) == 1
    plain = MemoryCluster(clock, manifest(labels={names.INJECT_LABEL: "false"}))
    plain.reachable = False
    look(plain, history, times=4)
    assert names.EVENT_NOT_INJECTED not in plain.reasons()


def test_a_history_that_is_away_is_told_once(clock, history):
    """One Event for the time that it is away, however many looks; another for the next time."""
    away = _Switched(history)
    cluster = MemoryCluster(clock)
    reconcilers = controller(cluster, away)

    def told():
        return cluster.reasons().count(names.EVENT_HISTORY_UNAVAILABLE)

    for _ in range(4):
        cluster.train()
        reconcilers.run_once(KEY)
    assert told() == 1
    away.works = True
    clock.now += 1000.0
    cluster.train()
    reconcilers.run_once(KEY)
    assert history.list()
    away.works = False
    clock.now += 1000.0
    cluster.train()
    reconcilers.run_once(KEY)
    assert told() == 2


class _Switched(_Nowhere):
    """A history that is away until it works."""

    def __init__(self, history):
        self.history, self.works = history, False

    def __getattr__(self, name):
        return getattr(self.history, name) if self.works else super().__getattr__(name)


@pytest.mark.parametrize("kept", ["whole", "", "{", '{"job": 1}'])
def test_steps_that_nobody_asked_for_in_time_are_known(cluster, history, kept, caplog):
    """What the coordinator left in its container's status, when the job has ended, goes into the
    history and the job's annotation; without it, they end with the last look."""
    look(cluster, history)
    seen = history.get("uid-1")
    cluster.train(3)
    last = codec.loads(
        CoordinatorStatus, cluster.call_coordinator(KEY, "GET", f"{names.PATH_STATUS}?after=0")
    )
    assert last.step > seen.steps
    words = termination_log.pack(last) if kept == "whole" else kept
    cluster.reachable, cluster.phase = False, "Succeeded"
    sidecar = ContainerStatus(
        names.SIDECAR_CONTAINER, running=False, exit_code=0, termination_message=words
    )
    cluster.pods = (
        Pod("digits-worker-0", "uid-0", "worker", 0, "Succeeded", containers=(sidecar,)),
    )
    look(cluster, history, times=2, windows=0)
    record = history.get("uid-1")
    assert record.outcome == "succeeded"
    known = last.step if kept == "whole" else seen.steps
    assert (record.steps, remembered(cluster)["step"]) == (known, known)
    windows = [window.ended_at for window in record.windows]
    assert (windows[-1] == last.windows[-1].ended_at) is (kept == "whole")
    assert ("left a last status that cannot be read" in caplog.text) is kept.startswith("{")


def _gone(cluster, words, *, running=False):
    """The job has failed, and its coordinator does not answer."""
    cluster.reachable, cluster.phase = False, "Failed"
    code = None if running else 0
    sidecar = ContainerStatus(
        names.SIDECAR_CONTAINER, running=running, exit_code=code, termination_message=words
    )
    cluster.pods = (Pod("digits-worker-0", "uid-0", "worker", 0, "Failed", containers=(sidecar,)),)


def test_events_that_nobody_asked_for_in_time_are_told_once(cluster, history):
    """A job that fails within seconds has a story, too: those that were told stay told once."""
    cluster.happen(names.EVENT_WORLD_FORMED, "round 1: 2 processes in 2 pods")
    look(cluster, history)
    cluster.happen(names.EVENT_PROCESS_FAILED, "rank 0: exit code 1")
    cluster.happen(names.EVENT_JOB_FAILED, "rank 0 in digits-worker-0: user_error")
    left = termination_log.pack(cluster._status(after=0))
    _gone(cluster, left)
    look(cluster, history, times=2, windows=0)
    told = [
        names.EVENT_WORLD_FORMED,
        names.EVENT_PROCESS_FAILED,
        names.EVENT_JOB_FAILED,
        names.EVENT_RECORDED,
    ]
    assert [reason for reason in cluster.reasons() if reason in told] == told


def test_the_story_of_a_coordinator_that_nobody_ever_asked_is_told(cluster, history):
    """It counted its Events from one, as did the coordinator before it, which was asked."""
    cluster.happen(names.EVENT_WORLD_FORMED, "round 1: 2 processes in 2 pods", sequence=9)
    look(cluster, history)
    cluster.coordinator_events.clear()
    cluster.story = cluster.clock()
    cluster.happen(names.EVENT_WORLD_FORMED, "round 2: 2 processes in 2 pods", sequence=1)
    _gone(cluster, termination_log.pack(cluster._status(after=0)))
    look(cluster, history, times=2, windows=0)
    assert cluster.reasons().count(names.EVENT_WORLD_FORMED) == 2


def test_last_words_are_waited_for_where_the_kubelet_still_calls_their_container_running(
    cluster, history
):
    """Nothing is told or recorded of an end whose story comes in a moment; but not for ever."""
    look(cluster, history)
    cluster.happen(names.EVENT_JOB_FAILED, "rank 0 in digits-worker-0: user_error")
    left = termination_log.pack(cluster._status(after=0))
    _gone(cluster, "", running=True)
    cluster.finished_at = cluster.clock()
    assert look(cluster, history, windows=0).delay == 1.0
    assert names.EVENT_JOB_FAILED not in cluster.reasons()
    _gone(cluster, left)
    look(cluster, history, windows=0)
    (told,) = [one for one in cluster.events if one.reason == names.EVENT_JOB_FAILED]
    assert told.message == "rank 0 in digits-worker-0: user_error"


def test_last_words_that_do_not_come_are_not_waited_for_any_longer(cluster, history):
    """The node is gone: its containers are called running for ever."""
    look(cluster, history)
    _gone(cluster, "", running=True)
    cluster.finished_at = cluster.clock() - 60
    look(cluster, history, windows=0)
    (told,) = [one for one in cluster.events if one.reason == names.EVENT_JOB_FAILED]
    assert "the Training Operator says Failed" in told.message


def test_a_verdict_that_nobody_asked_for_in_time_is_told(cluster, history):
    """The coordinator has gone with its pod: the containers' status says why the job failed. What
    a container left that ended otherwise says nothing."""
    look(cluster, history)
    cluster.reachable, cluster.phase = False, "Failed"
    ends = ((143, "drained"), (names.EXIT_USER_ERROR, "rank 1 in digits-worker-1: user_error: no"))
    cluster.pods = tuple(
        Pod(
            f"digits-worker-{index}",
            f"uid-{index}",
            "worker",
            index,
            "Failed",
            containers=(
                ContainerStatus(
                    "pytorch", running=False, exit_code=code, termination_message=words
                ),
            ),
        )
        for index, (code, words) in enumerate(ends)
    )
    look(cluster, history, times=2, windows=0)
    (told,) = [e for e in cluster.events if e.reason == names.EVENT_JOB_FAILED]
    assert told.message.endswith(
        "container pytorch said: rank 1 in digits-worker-1: user_error: no"
    )
