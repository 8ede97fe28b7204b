# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on a real cluster: the kernel kills at a limit, the limit is raised, the job succeeds."""

from __future__ import annotations

import json

import pytest
from testcluster import jobs, objects
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("controller")]

STEPS, HUNGRY, NEEDS_MIB = 60, 30, 250
STATED, ENOUGH = "512Mi", "768Mi"
_ROW = (
    "import sqlite3, sys; print(sqlite3.connect('/var/lib/rover-kf/history.db').execute("
    "'select record from runs where namespace = ?', sys.argv[1:]).fetchone()[0])"
)


@pytest.fixture
def hungry(cluster, namespace, with_trainer) -> RunningJob:
    """A job of two whose ranks need more than their limit from a step on."""
    command = ["torchrun", "/tools/hungry.py", *map(str, (STEPS, HUNGRY, NEEDS_MIB))]
    job = objects.pytorchjob("hungry", namespace, command, elastic=(2, 2), memory=STATED)
    job["spec"]["nprocPerNode"] = "1"
    job["metadata"] |= {
        "labels": {"rover-kf.io/inject": "true"},
        "annotations": {
            "rover-kf.io/checkpoint.every": "10",
            "rover-kf.io/checkpoint.arena": "16Mi",
            "rover-kf.io/scaling.mode": "off",
            "rover-kf.io/memory.max": "1Gi",
            "rover-kf.io/failures.restarts": "4",
        },
    }
    apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    return RunningJob(cluster, namespace, "hungry")


def _limits(pod: dict) -> tuple[str, str]:
    """What the trainer of a pod shall have, and what its kubelet says that it has."""
    (stated,) = [item for item in pod["spec"]["containers"] if item["name"] == "pytorch"]
    (seen,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == "pytorch"]
    return stated["resources"]["limits"]["memory"], seen["resources"]["limits"]["memory"]


def _all_limits(job: RunningJob) -> set[tuple[str, str]]:
    return {_limits(pod) for pod in job.pods().values()}


def _told(job: RunningJob, reason: str) -> list[str]:
    return [event["message"] for event in job.events() if event["reason"] == reason]


def _beside(pod: dict) -> dict:
    """What all containers but the trainer ask for and may use."""
    others = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return {one["name"]: one["resources"] for one in others if one["name"] != "pytorch"}


def test_a_limit_that_is_too_low_is_raised_in_place(cluster, controller, hungry):
    """Killed by the kernel at 512 MiB, both pods get 768 MiB while they run, and training goes on
    from the last save to its end; told, remembered, and nothing else of the pods is changed."""
    job = hungry
    before = eventually(lambda: len(found := job.pods()) == 2 and found, within=60, what="pods")
    raised = eventually(lambda: _told(job, "MemoryRaised"), within=120, what="a raise")
    assert len(raised) == 1
    assert f"{STATED} -> {ENOUGH}, in place" in raised[0]
    eventually(lambda: _all_limits(job) == {(ENOUGH, ENOUGH)}, within=60, what="both kubelets")
    assert eventually(job.verdict, within=120, what="the job's end") == "Succeeded"

    after = job.pods()
    for name, pod in before.items():
        now = after[name]
        assert now["metadata"]["uid"] == pod["metadata"]["uid"], "the pod was not replaced"
        assert [one["restartCount"] for one in now["status"]["containerStatuses"]] == [0]
        assert _beside(now) == _beside(pod), "the sidecar has what it had"
        assert f"ends with {2 * STEPS}" in job.log(name), "no step was lost or made twice"
    assert any("out_of_memory" in line for line in _told(job, "TrainingProcessFailed"))
    eventually(lambda: _told(job, "RunRecorded"), within=60, what="the history's row")
    read = ("exec", "deploy/rover-kf-controller", "--", "python3", "-c", _ROW, job.namespace)
    record = json.loads(cluster.kubectl("-n", controller, *read))
    assert (record["memory_raised"], record["outcome"]) == (768 << 20, "succeeded")
