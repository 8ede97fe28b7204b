# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A worker whose loader lacks cores is given them while it runs, before more replicas are tried."""

from __future__ import annotations

import pytest
from testcluster import jobs, objects
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api.jobs import JobKey
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client import explain
from rover_kf.cluster.kubernetes import config
from rover_kf.history.store import SqlHistory
from rover_kf.injection import quantities
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(900), pytest.mark.usefixtures("controller"), pytest.mark.at_length
]  # fmt: skip

STATED, MOST, PATIENCE = "250m", "1", 400
A_SAMPLE = "0.03"
"""Seconds of a core: a step of four takes 0.12 of it, half a second at a quarter of a core."""


def starving(namespace: str, name: str = "starving") -> dict:
    """A job of one replica that may have two, and a quarter of a core each at first."""
    command = ["torchrun", "/tools/starving.py", A_SAMPLE]
    job = objects.pytorchjob(name, namespace, command, workers=1, elastic=(1, 2), cpu="50m")
    job["spec"]["nprocPerNode"] = "1"
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = STATED
    policy = {
        "scaling.mode": "auto",
        "scaling.window": "10s",
        "scaling.cooldown": "2s",
        "cpu.max": MOST,
        "checkpoint.every": "20",
        "checkpoint.arena": "16Mi",
    }
    job["metadata"] |= {
        "labels": {"rover-kf.io/inject": "true"},
        "annotations": {f"rover-kf.io/{key}": text for key, text in policy.items()},
    }
    return job


def _cores(job: RunningJob) -> float:
    """What the first worker's kubelet says that its trainer may use now."""
    statuses = job.pods()[f"{job.name}-worker-0"]["status"]["containerStatuses"]
    (found,) = [one for one in statuses if one["name"] == "pytorch"]
    assert found["restartCount"] == 0
    return quantities.parse_cores(found["resources"]["limits"]["cpu"])


def _rate(windows: list[dict]) -> float:
    spent = sum(one["ended_at"] - one["started_at"] for one in windows)
    return sum(one["steps"] for one in windows) / spent


def test_a_starved_worker_gets_cores_before_replicas(cluster, namespace, with_trainer, tmp_path):
    """Raised in place and in the template, told with why; its steps get faster, no pod is made
    anew for it, and ``explain`` says that replicas waited for what cores bring."""
    made = with_trainer(starving(namespace), scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    apply(cluster, [made])
    job = RunningJob(cluster, namespace, "starving")
    eventually(lambda: job.status().get("windows"), within=PATIENCE, every=0.5, what="a window")
    slow = _rate(job.status()["windows"][:1])
    uid = job.pods()["starving-worker-0"]["metadata"]["uid"]
    raised = eventually(lambda: job.told("CpuRaised"), within=PATIENCE, every=0.5, what="a raise")
    assert f"CPU limit of Worker replicas {STATED} -> " in raised[0]
    assert f"in place: starving-worker-0 had used up its {STATED} in " in raised[0]
    assert "of a step waits for data" in raised[0]
    assert job.told("ScaleDecision") == [], "no replica before cores"
    eventually(
        lambda: _cores(job) > quantities.parse_cores(STATED),
        within=60, every=0.3, what="the kubelet to have resized it",
    )  # fmt: skip
    fast = eventually(
        lambda: (rates := job.status().get("windows") or ()) and _faster(slow, rates),
        within=PATIENCE, every=1.0, what="faster steps",
    )  # fmt: skip
    assert job.pods()["starving-worker-0"]["metadata"]["uid"] == uid
    specs = job.read()["spec"]["pytorchReplicaSpecs"]
    (container,) = specs["Worker"]["template"]["spec"]["containers"]
    assert quantities.parse_cores(container["resources"]["limits"]["cpu"]) > 0.25
    place = config.from_environment(kubeconfig=str(cluster.kubeconfig))
    with SqlHistory(f"sqlite:///{tmp_path}/none.db") as none:
        found = explain.explain(place, none, JobKey(namespace, "starving"))
    told = list(format_explanation(found, 20))
    assert any(f"CPU limit of Worker replicas {STATED} -> " in line for line in told)
    print(f"\n{slow:.2f} -> {fast:.2f} steps/s", *told, sep="\n")


def _faster(slow: float, windows: list[dict]) -> float:
    """Steps a second in the newest window, where they are half as many again; else 0."""
    newest = _rate(windows[-1:])
    return newest if newest > 1.5 * slow else 0.0
