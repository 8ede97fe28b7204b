# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Why a job has its size: told by the history, or by the job's own annotation."""

from __future__ import annotations

import json

import pytest
from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.limit_raises import MemoryLimitRaises
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client import patches
from rover_kf.client.explain import ANNOTATION, HISTORY, explain, with_effects
from rover_kf.history.store import SqlHistory
from rover_kf.injection.limits import manifest_memory
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.reconciler import Reconciler
from rover_kf.reconcilers.status_annotation import JobStatus

PATH = {f"{names.PREFIX}checkpoint.path": "/checkpoints"}


def looked_at(cluster, history, times):
    for _ in range(times):
        cluster.train()
        Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def test_predicted_and_then_measured(clock, history):
    """After a growth that was verified: what it was made of, promised, and came to; the decisions
    to stay before and after it say why, too."""
    cluster = MemoryCluster(clock)
    looked_at(cluster, history, 8)
    found = explain(cluster, history, KEY)
    assert (found.replicas, found.mode, found.allowed, found.source) == (3, "auto", "1-3", HISTORY)
    (change,) = [one for one in found.decisions if one.decision.action == "scale"]
    assert change.decision.applied
    assert change.decision.windows == 2
    assert change.gain == pytest.approx(1.5)
    assert change.decision.predicted_gain == pytest.approx(1.4, rel=0.02)
    reasons = [one.decision.reason for one in found.decisions if one.decision.action == "stay"]
    assert "1 of 2 windows measured at 2 replicas" in reasons[0]
    assert any("verified" in reason for reason in reasons)
    text = "\n".join(format_explanation(found, 20))
    assert "scale 2 -> 3, applied: 2 -> 3 replicas: 64.0 ->" in text
    promised = f"predicted {change.decision.predicted:.1f} samples/s"
    assert promised in text
    assert "measured then 96.0 (1.50 times)" in text
    json.dumps(codec.encode(found))


def test_the_annotation_keeps_changes_longer_than_stays():
    """Of one kind the newest, however its numbers cut it off; beyond six the oldest stay goes."""
    memory, tail = JobStatus(), "would pay, and nodes have room for 0 more of its pods; " * 4
    for at in range(3):
        memory = memory.with_decision(_decision(at, "scale", at + 2, "grows", applied=True))
    for at in range(3, 40):
        memory = memory.with_decision(_decision(at, "stay", 4, f"{10**at} {tail}"))
        memory = memory.with_decision(_decision(at, "stay", 4, f"{'abcdefgh'[at % 8]} {tail}"))
    assert [one.target for one in memory.recent if one.applied] == [2, 3, 4]
    assert len(memory.recent) == 6
    kinds = [one.reason[0] for one in memory.recent if one.action == "stay"]
    assert sorted(set(kinds)) == sorted(kinds)


def _decision(at, action, target, reason, *, applied=False):
    return ScaleDecision(float(at), action, 1, target, reason, 1.0, 2.0, 3.0, applied)


def test_a_raised_memory_limit_is_told(clock, history):
    """With what the owner stated, what it is now and what for; a limit that the run before needed
    has no more to say."""
    stated, limit = 512 << 20, 768 << 20
    given = manifest(annotations={"rover-kf.io/memory-raised": _raised(stated, limit)})
    cluster = MemoryCluster(clock, given)
    (line,) = [
        line for line in format_explanation(explain(cluster, history, KEY), 20) if "memory" in line
    ]
    assert line == "memory limit of Worker replicas 512Mi -> 768Mi: by what the run before needed"
    why = "it grows by 2.00 MiB/s since 44 s and would reach the limit in 60 s"
    growth = MemoryLimitRaises("worker", 1, clock(), reason=why)
    text = status_annotation.write(JobStatus(memory=(growth,)))
    cluster.edit({"metadata": {"annotations": {names.STATUS_ANNOTATION: text}}})
    (told,) = explain(cluster, history, KEY).memory
    assert (told.stated, told.limit, told.raises, told.reason) == (stated, limit, 1, why)
    assert any(
        line.endswith(why) for line in format_explanation(explain(cluster, history, KEY), 20)
    )


def _raised(stated, limit):
    return manifest_memory.annotation({"Worker": manifest_memory.LimitRaise(stated, limit)})


def test_without_the_history_the_annotation_tells(clock, history, tmp_path):
    """A user who cannot read the controller's history sees the last few of each kind."""
    cluster = MemoryCluster(clock)
    looked_at(cluster, history, 8)
    with SqlHistory(f"sqlite:///{tmp_path}/empty.db") as empty:
        found = explain(cluster, empty, KEY)
    assert found.source == ANNOTATION
    (change,) = [one for one in found.decisions if one.decision.action == "scale"]
    assert change.gain == pytest.approx(1.5)
    assert any("verified" in one.decision.reason for one in found.decisions)
    assert len(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION]) <= 4096


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "Kueue"),
        ({"spec": {"elasticPolicy": {"metrics": [{}]}}}, "HPA"),
        ({"spec": {"runPolicy": {"suspend": True}}}, "suspended"),
        ({"annotations": {f"{names.PREFIX}scaling.mode": "off"}}, "scaling.mode is off"),
        ({"annotations": {f"{names.PREFIX}scaling.mode": "turbo"}}, "annotations are wrong"),
    ],
)
def test_a_job_that_is_left_alone_says_why(changes, why, clock, history):
    """Without any decision, too."""
    found = explain(MemoryCluster(clock, manifest(**changes)), history, KEY)
    assert why in found.unmanaged_reason
    assert any(line.startswith("left alone: ") for line in format_explanation(found, 20))


def test_a_change_that_was_taken_back_is_measured_before_it_was():
    """Effects are what was seen at the target until the next change, and of changes alone."""

    def one(at, action, current, target, measured, *, applied=False):
        return ScaleDecision(at, action, current, target, "why", measured, 0.0, 1.0, applied)

    found = with_effects(
        (
            one(1, "scale", 1, 2, 10.0, applied=True),
            one(2, "stay", 2, 2, 8.0),
            one(3, "roll_back", 2, 1, 8.0, applied=True),
            one(4, "stay", 1, 1, 10.5),
            one(5, "scale", 1, 2, 10.5),
        )
    )
    assert [one.measured_then for one in found] == [8.0, 0.0, 10.5, 0.0, 0.0]
    assert found[0].gain == pytest.approx(0.8)


def test_a_job_is_paused_and_resumed(clock):
    """The patch, its Event, and what was durable when the pods had gone; twice does no harm."""
    cluster = MemoryCluster(clock, manifest(annotations=PATH))
    cluster.train(2)
    cluster.durable = 7
    done = patches.pause(cluster, KEY)
    assert (done.step, done.durable_step, done.pods) == (cluster.step, 7, 0)
    assert cluster.manifest["spec"]["runPolicy"] == {"suspend": True}
    assert cluster.reasons() == [names.EVENT_SUSPENDED]
    assert patches.pause(cluster, KEY).job.suspended
    assert not patches.resume(cluster, KEY).suspended
    assert cluster.reasons() == [names.EVENT_SUSPENDED, names.EVENT_RESUMED]
    assert not patches.resume(cluster, KEY).suspended
    assert len(cluster.events) == 2


@pytest.mark.parametrize(
    ("changes", "phase", "why"),
    [
        ({}, "Running", "memory alone"),
        ({"annotations": PATH}, "Succeeded", "it is Succeeded"),
        (
            {"annotations": PATH, "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "Running",
            "suspend it there",
        ),
    ],
)
def test_a_pause_that_would_harm_is_refused(changes, phase, why, clock):
    """What is in memory alone would be lost, Kueue would undo it, an end is an end."""
    cluster = MemoryCluster(clock, manifest(**changes))
    cluster.phase = phase
    with pytest.raises(errors.InputError, match=why):
        patches.pause(cluster, KEY)
    assert cluster.patches == 0
    if not changes:
        assert patches.pause(cluster, KEY, force=True).job.suspended


class _Refusing:
    """A cluster for who may read a job and patch it, and nothing else."""

    def __init__(self, cluster):
        self._cluster = cluster

    def emit(self, *_):
        raise errors.InputError("events is forbidden")

    def call_coordinator(self, key, method, path, body=None, *, pod=None):
        if method != "GET":
            raise errors.Unreachable(f"{method} {path}")
        return self._cluster.call_coordinator(key, method, path, body, pod=pod)

    def __getattr__(self, name):
        return getattr(self._cluster, name)


def test_a_user_without_rights_on_the_cluster_watches_a_job(clock, history):
    """Neither Events nor orders to the coordinator can be made: the same decision is made and the
    same patch, and the coordinator hears of it from its pods."""
    cluster = MemoryCluster(clock)
    controller = Reconciler(_Refusing(cluster), history, clock=clock)
    for _ in range(3):
        cluster.train()
        controller.run_once(KEY)
    assert cluster.resizes == [(2, 3)]
    assert cluster.posts == []
    cluster.expected = 3
    for _ in range(4):
        cluster.train()
        controller.run_once(KEY)
    assert any(
        "verified" in one.decision.reason for one in explain(cluster, history, KEY).decisions
    )
