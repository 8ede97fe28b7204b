# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on a real cluster: a limit is raised after the kernel has killed at it, or in time."""

from __future__ import annotations

import json
import re

import pytest
from testcluster import jobs, objects
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api.jobs import JobKey
from rover_kf.cli import job_verbs
from rover_kf.client import explain as client_explain
from rover_kf.cluster.kubernetes import config
from rover_kf.history.store import SqlHistory
from rover_kf.injection import quantities
from tests.support.failure_cases import LIMIT_REACHED
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("controller")]

STEPS, HUNGRY, NEEDS_MIB = 60, 30, 250
STATED, ENOUGH = "512Mi", "768Mi"
LEAKING_STEPS, LEAK_KIB = 1300, 200
LITTLE, MOST = "640Mi", "960Mi"
_ROW = (
    "import sqlite3, sys; print(sqlite3.connect('/var/lib/rover-kf/history.db').execute("
    "'select record from runs where namespace = ?', sys.argv[1:]).fetchone()[0])"
)


@pytest.fixture
def explain(cluster, tmp_path):
    """What ``rover-kf explain`` prints to a user who has the job alone."""
    place = config.from_environment(kubeconfig=str(cluster.kubeconfig))
    with SqlHistory(f"sqlite:///{tmp_path}/none.db") as none:
        yield lambda job: list(
            job_verbs.format_explanation(
                client_explain.explain(place, none, JobKey(job.namespace, job.name)), 20
            )
        )


def _limited(name: str, namespace: str, *words: int, limit: str, most: str) -> dict:
    """A job of two, of which neither may take more than the limit."""
    command = ["torchrun", f"/tools/{name}.py", *map(str, words)]
    job = objects.pytorchjob(name, namespace, command, elastic=(2, 2), memory=limit)
    job["spec"]["nprocPerNode"] = "1"
    job["metadata"] |= {
        "labels": {"rover-kf.io/inject": "true"},
        "annotations": {
            "rover-kf.io/checkpoint.every": "10",
            "rover-kf.io/checkpoint.arena": "16Mi",
            "rover-kf.io/scaling.mode": "off",
            "rover-kf.io/memory.max": most,
            "rover-kf.io/failures.restarts": "4",
        },
    }
    return job


@pytest.fixture
def submit(cluster, with_trainer):
    def run(job: dict) -> RunningJob:
        apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, job["metadata"]["namespace"], job["metadata"]["name"])

    return run


@pytest.fixture
def hungry(namespace, submit) -> RunningJob:
    """A job whose ranks need more than their limit from a step on."""
    words = (STEPS, HUNGRY, NEEDS_MIB)
    return submit(_limited("hungry", namespace, *words, limit=STATED, most="1Gi"))


def _limits(pod: dict) -> tuple[str, str]:
    """What the trainer of a pod shall have, and what its kubelet says that it has."""
    (stated,) = [item for item in pod["spec"]["containers"] if item["name"] == "pytorch"]
    (seen,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == "pytorch"]
    return stated["resources"]["limits"]["memory"], seen["resources"]["limits"]["memory"]


def _all_limits(job: RunningJob) -> set[tuple[str, str]]:
    return {_limits(pod) for pod in job.pods().values()}


def _beside(pod: dict) -> dict:
    """What all containers but the trainer ask for and may use."""
    others = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return {one["name"]: one["resources"] for one in others if one["name"] != "pytorch"}


def test_a_limit_that_is_too_low_is_raised_in_place(cluster, controller, hungry, explain):
    """Killed by the kernel at 512 MiB, both pods get 768 MiB while they run, and training goes on
    from the last save to its end; told, remembered, and nothing else of the pods is changed."""
    job = hungry
    before = eventually(lambda: len(found := job.pods()) == 2 and found, within=60, what="pods")
    raised = eventually(lambda: job.told("MemoryRaised"), within=120, what="a raise")
    assert len(raised) == 1
    assert f"{STATED} -> {ENOUGH}, in place" in raised[0]
    eventually(lambda: _all_limits(job) == {(ENOUGH, ENOUGH)}, within=60, what="both kubelets")
    assert eventually(job.verdict, within=120, what="the job's end") == "Succeeded"

    after = job.pods()
    for name, pod in before.items():
        now = after[name]
        assert now["metadata"]["uid"] == pod["metadata"]["uid"], "the pod was not replaced"
        # The kernel takes the largest process, then the next, until it has room: a launcher comes
        # last, and was once among them.
        (trainer,) = now["status"]["containerStatuses"]
        assert trainer["restartCount"] <= 1
        assert _beside(now) == _beside(pod), "the sidecar has what it had"
        assert f"ends with {2 * STEPS}" in job.log(name), "no step was lost or made twice"
    killed = f": {LIMIT_REACHED.kind}: ended by SIGKILL"
    assert any(killed in line for line in job.told("TrainingProcessFailed"))
    eventually(lambda: job.told("RunRecorded"), within=60, what="the history's row")
    read = ("exec", "deploy/rover-kf-controller", "--", "python3", "-c", _ROW, job.namespace)
    record = json.loads(cluster.kubectl("-n", controller, *read))
    assert (record["memory_raised"], record["outcome"]) == (768 << 20, "succeeded")
    (told,) = [line for line in explain(job) if "memory limit" in line]
    assert f"Worker replicas {STATED} -> {ENOUGH}: the kernel killed for memory in" in told


@pytest.mark.timeout(600)
@pytest.mark.at_length
def test_a_limit_is_raised_before_it_is_reached(namespace, submit, explain):
    """Two pods take more with each step. Before they have what their limit allows it is raised,
    while they run; they end beyond the limit that they began with, and nothing was killed."""
    words = (LEAKING_STEPS, LEAK_KIB)
    job = submit(_limited("leaking", namespace, *words, limit=LITTLE, most=MOST))
    before = eventually(lambda: len(found := job.pods()) == 2 and found, within=60, what="pods")
    (line,) = eventually(lambda: job.told("MemoryRaised"), within=180, what="a raise")
    assert f"{LITTLE} -> {MOST}, in place: it grows by" in line
    assert "would reach the limit in" in line
    eventually(lambda: _all_limits(job) == {(MOST, MOST)}, within=60, what="both kubelets")
    (told,) = [line for line in explain(job) if "memory limit" in line]
    assert f"Worker replicas {LITTLE} -> {MOST}: it grows by" in told
    assert eventually(job.verdict, within=400, what="the job's end") == "Succeeded"

    after = job.pods()
    for name, pod in before.items():
        now = after[name]
        assert now["metadata"]["uid"] == pod["metadata"]["uid"], "the pod was not replaced"
        assert [one["restartCount"] for one in now["status"]["containerStatuses"]] == [0]
        (end,) = [words for words in job.log(name).splitlines() if "MiB taken" in words]
        weight, taken = (int(word) for word in re.findall(r"\d+", end))
        assert weight == 2 * LEAKING_STEPS, "no step was lost or made twice"
        assert taken << 20 > quantities.parse_bytes(LITTLE), (
            "the first limit would not have been enough"
        )
    assert not job.told("TrainingProcessFailed")
    assert len(job.told("MemoryRaised")) == 1
    print(f"\n{line}\n{told}\n{end}")
