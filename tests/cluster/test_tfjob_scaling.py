# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TFJobs that find their own size on a real cluster: live, and by a suspension."""

from __future__ import annotations

import re

import pytest
from testcluster import jobs, tfjobs
from testcluster.jobs import RunningJob
from testcluster.objects import Object, apply
from testcluster.tfjobs import Chief

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client import explain
from rover_kf.cluster.kubernetes import config
from rover_kf.history.store import SqlHistory
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(1500), pytest.mark.usefixtures("controller"), pytest.mark.at_length
]  # fmt: skip

PATIENCE = 400.0
"""Seconds: processes load TensorFlow at once, on two cores."""
ROWS, BATCH, BATCHES = 569, 64, 9
"""Of the wide-and-deep sample: its table, what is handed out at once, and how often an epoch."""
COMING_EPOCHS, COMING_BATCH, COMING_PAUSE = 60, 16, "0.3"
PAUSE = "0.15"
"""Half of the seconds that a batch takes its worker at least."""
BEFORE, EPOCHS = 200, 178
"""Steps of the run before, and epochs of the one that grows."""
HOT_BEFORE, HOT_STEPS, SCARCE = 120, 2000, "50m"
"""Steps of both where servers have too little of a core, and what they have."""
POLICY = {
    "scaling.mode": "auto",
    "scaling.window": "8s",
    "scaling.cooldown": "5s",
    "scaling.value-of-time": "8",
}


def _workers(job: RunningJob) -> int:
    return job.read()["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]


def _verified(job: RunningJob, numbers: str) -> None:
    eventually(
        lambda: any(f" at {numbers}" in line for line in job.told(names.EVENT_SCALE_VERIFIED)),
        within=PATIENCE, every=0.5, what=f"{numbers} to be verified",
    )  # fmt: skip


def _grown(job: RunningJob, workers: int) -> None:
    """Wait until it has so many, verified."""
    eventually(
        lambda: _workers(job) == workers, within=PATIENCE, every=0.5, what=f"{workers} workers"
    )
    scaled = f"Worker {workers - 1} -> {workers} replicas"
    eventually(lambda: scaled in job.told(names.EVENT_SCALED), within=60, every=0.5, what=scaled)
    _verified(job, f"{workers} workers and 1 PS")


def _print(cluster, tmp_path, job: RunningJob, *told: object) -> None:
    """What a run with -s shows: what ``rover-kf explain`` says to who has the job alone."""
    place = config.from_environment(kubeconfig=str(cluster.kubeconfig))
    with SqlHistory(f"sqlite:///{tmp_path}/none.db") as none:
        found = explain.explain(place, none, JobKey(job.namespace, job.name, "TFJob"))
    print("", *told, *format_explanation(found, 20), sep="\n")


def test_workers_come_by_themselves(cluster, namespace, with_trainer, shared_claim, tmp_path):
    """One that may have three gets them one after the other, each verified; no pod is made anew,
    no program begins anew, and each row is trained on once an epoch."""
    shared_claim(f"{tfjobs.COMING}-checkpoints")
    made = tfjobs.coming(namespace, COMING_EPOCHS)
    made["metadata"]["annotations"] |= {f"rover-kf.io/{key}": text for key, text in POLICY.items()}
    command = made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    words = command["command"]
    words[words.index("--pause") + 1] = COMING_PAUSE
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.COMING, "TFJob")
    chief = Chief(job, PATIENCE)
    chief.reach(5)
    before = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    _grown(job, 2)
    _grown(job, 3)
    _print(cluster, tmp_path, job, *job.told(names.EVENT_SCALE_DECISION))
    after = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    assert before.items() <= after.items()
    assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    assert len(chief.starts()) == 1
    came, result = job.told(names.EVENT_WORKER_JOINED), chief.result()
    assert sorted(re.findall(r"worker (\d) takes", " ".join(came))) == ["0", "1", "2"]
    assert result["least"] == COMING_EPOCHS, "a row was lost"
    assert result["rows"] - COMING_EPOCHS * ROWS <= 2 * COMING_BATCH
    print(f"ended with {result}")


def _slow(namespace: str, steps: int, workers: int, **policy: str) -> Object:
    """The wide-and-deep sample, whose workers take their time."""
    job = tfjobs.wide_and_deep(namespace, steps, {"checkpoint.every": "50", **policy})
    for kind, spec in job["spec"]["tfReplicaSpecs"].items():
        command = spec["template"]["spec"]["containers"][0]["command"]
        if kind != "PS":
            command[1:1] = ["/tools/slow_workers.py", PAUSE]
    job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = workers
    return job


def test_a_job_of_fixed_size_grows_by_a_suspension(
    cluster, namespace, with_trainer, shared_claim, tmp_path
):
    """A run before has had two workers. The next one, which has one, goes through the suspend cycle
    by itself: all pods end, it has two, goes on from storage, is verified, and completes with each
    row trained on once an epoch."""
    shared_claim(tfjobs.CLAIM)

    def submit(name: str, *given: int, **policy: str) -> RunningJob:
        made = _slow(namespace, *given, **policy)
        made["metadata"]["name"] = name
        apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, name, "TFJob")

    before = submit("before", BEFORE, 2, **{"scaling.window": "8s"})
    assert eventually(before.verdict, within=PATIENCE, every=0.5, what="its end") == "Succeeded"
    eventually(lambda: before.told(names.EVENT_RECORDED), within=60, what="its record")

    steps = EPOCHS * BATCHES
    job = submit("fixed", steps, 1, **{**POLICY, "scaling.max": "2"})
    chief = Chief(job, PATIENCE)
    _grown(job, 2)
    (decided,) = job.told(names.EVENT_SCALE_DECISION)
    assert decided.startswith("Worker 1 -> 2: ")
    assert "through suspension" in decided
    (suspended,) = job.told(names.EVENT_SUSPENDED)
    assert "suspended: for Worker 1 -> 2" in suspended
    begun = chief.start_after(0)  # of a pod of its own, whose log begins anew
    assert begun.source == "storage"
    assert begun.step > 0
    _print(cluster, tmp_path, job, decided, suspended, *job.told(names.EVENT_RESUMED), begun)
    assert eventually(job.verdict, within=2 * PATIENCE, every=0.5, what="the end") == "Succeeded"
    result = chief.result()
    assert (result["steps"], result["resumed"]) == (steps, "storage")
    assert (result["least"], result["most"]) == (EPOCHS, EPOCHS)
    print(f"ended with {result}")


def test_servers_are_added_by_a_suspension(
    cluster, namespace, with_trainer, shared_claim, tmp_path
):
    """Servers that have too little of a core. A run before has had two of them; the next one, which
    has one, gets another by itself: all pods end, the new ones go on from storage with the
    variables spread over both, faster, and complete."""
    shared_claim(tfjobs.CLAIM)

    def submit(name: str, steps: int, servers: int, **policy: str) -> RunningJob:
        told = {"scaling.window": "8s", "checkpoint.every": "50", **policy}
        made = tfjobs.hot(namespace, steps, told)
        made["metadata"]["name"] = name
        replica = made["spec"]["tfReplicaSpecs"]["PS"]
        replica["replicas"] = servers
        (server,) = replica["template"]["spec"]["containers"]
        server["resources"]["limits"]["cpu"] = server["resources"]["requests"]["cpu"] = SCARCE
        apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, name, "TFJob")

    before = submit("before", HOT_BEFORE, 2)
    assert eventually(before.verdict, within=PATIENCE, every=0.5, what="its end") == "Succeeded"
    eventually(lambda: before.told(names.EVENT_RECORDED), within=60, what="its record")

    job = submit("hot", HOT_STEPS, 1, **{**POLICY, "scaling.ps-max": "2"})
    chief = Chief(job, PATIENCE)
    scaled = "PS 1 -> 2 replicas"
    eventually(
        lambda: scaled in job.told(names.EVENT_SCALED), within=PATIENCE, every=0.5, what=scaled
    )
    _verified(job, "2 workers and 2 PS")
    (decided,) = job.told(names.EVENT_SCALE_DECISION)
    assert decided.startswith("PS 1 -> 2: ")
    assert sorted(name for name in job.pods() if "-ps-" in name) == ["hot-ps-0", "hot-ps-1"]
    begun = chief.start_after(0)  # of a pod of its own, whose log begins anew
    assert begun.source == "storage"
    assert begun.step > 0
    _print(cluster, tmp_path, job, decided, *job.told(names.EVENT_RESUMED), begun)
    assert eventually(job.verdict, within=2 * PATIENCE, every=0.5, what="the end") == "Succeeded"
    result = chief.result()
    assert (result["steps"], result["resumed"]) == (HOT_STEPS, "storage")
    assert result["most"] - result["least"] <= 1, "rows were lost, or came twice"
    print(f"ended with {result}")
