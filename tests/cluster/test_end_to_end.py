# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The whole path on a real cluster: inject, train, survive, scale, end, leave nothing behind."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable

import pytest
from testcluster import deployment, jobs, objects, storage
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api import names
from rover_kf.checkpoint.format import manifest
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("controller")]


@pytest.fixture
def submit(cluster, namespace, with_trainer, shared_claim):
    """Apply a digits job as a user would; returns it running."""
    shared_claim(jobs.CLAIM)

    def run(*options: str, change: Callable[[dict], dict] = dict) -> RunningJob:
        job = change(jobs.digits(namespace, *options))
        job = with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)
        apply(cluster, [job])
        return RunningJob(cluster, namespace, job["metadata"]["name"])

    return run


def _injected(job: RunningJob) -> bool:
    containers = _pod_spec(job).get("initContainers", [])
    return "rover-sidecar" in [container["name"] for container in containers]


def _pod_spec(job: RunningJob) -> dict:
    return job.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def _reaches(job: RunningJob, **least: int) -> dict:
    def reached() -> dict:
        status = job.status()
        ended = job.verdict() if not status else ""
        assert not ended, f"the job ended as {ended} before it reached {least}"
        return (
            status if all((status.get(key) or 0) >= value for key, value in least.items()) else {}
        )

    return eventually(reached, within=240, every=0.3, what=f"status {least}")


def _ends(job: RunningJob, *, within: float = 400) -> str:
    return eventually(job.verdict, within=within, every=1, what="the job's end")


def _kill_and_resume(job: RunningJob, faults, victim: str) -> tuple[int, int]:
    """SIGKILL the training process of a pod; the steps sealed before and resumed at after it."""
    sealed = _reaches(job, sealed_step=40)["sealed_step"]
    faults.kill(job.namespace, victim, container="pytorch")
    steps = {_same_bits(job, pod) for pod in sorted(job.pods())}
    assert len(steps) == 1, f"the pods resumed at different steps: {steps}"
    return sealed, steps.pop()


def _with_master(job: dict) -> dict:
    """The same training as a Master and one Worker, of a size that does not change."""
    spec = {key: value for key, value in job["spec"].items() if key != "elasticPolicy"}
    worker = spec["pytorchReplicaSpecs"]["Worker"] | {"replicas": 1}
    spec["pytorchReplicaSpecs"] = {"Master": copy.deepcopy(worker), "Worker": worker}
    annotations = job["metadata"]["annotations"] | {"rover-kf.io/scaling.mode": "off"}
    return job | {"metadata": job["metadata"] | {"annotations": annotations}, "spec": spec}


def _without_saves(job: dict) -> dict:
    annotations = job["metadata"]["annotations"] | {"rover-kf.io/checkpoint.every": "100000"}
    return job | {"metadata": job["metadata"] | {"annotations": annotations}}


def _same_bits(job: RunningJob, pod: str) -> int:
    """The step that the pod resumed at, after showing that its state is the one it saved then."""
    resumed = eventually(
        lambda: job.traces(pod, "restored")[1:], within=120, every=0.5, what="a restore"
    )
    step, digest, source = resumed[0]
    assert source == "memory"
    had = {at: found for at, found, _ in job.traces(pod, "saved")}
    assert digest == had[step], f"{pod} resumed step {step} with other bits"
    return step


def test_the_whole_path(faults, submit, hurry):
    """Applied with the label: injected, trained by two, killed, resumed from memory bit by bit,
    scaled to three by the controller, succeeded, the sidecars ended, the story told."""
    job = submit("--samples-per-second", "150", "--steps", "900")
    assert _injected(job)
    _reaches(job, nodes=2, step=1)

    sealed, resumed = _kill_and_resume(job, faults, "digits-worker-1")
    assert resumed >= sealed

    eventually(
        lambda: job.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3,
        within=240, every=1, what="three replicas",
    )  # fmt: skip
    _reaches(job, nodes=3, world_size=3)

    hurry()
    assert _ends(job) == "Succeeded"
    pods = job.pods()
    phases = eventually(
        lambda: {pod["status"]["phase"] for pod in job.pods().values()} == {"Succeeded"},
        within=90, what="every pod Succeeded, sidecars too",
    )  # fmt: skip
    assert phases
    assert len(pods) == 3
    result = json.loads(re.findall(r"\{.*accuracy.*\}", job.log("digits-worker-0"))[-1])
    assert result["accuracy"] >= 0.95
    assert result["world_size"] == 3
    story = {
        "RoverInjected", "WorldFormed", "TrainingProcessFailed", "CheckpointRestored",
        "Recovered", "ScaleDecision", "Scaled", "TrainingFinished",
    }  # fmt: skip
    told = eventually(
        lambda: (found := {event["reason"] for event in job.events()}) >= story and found,
        within=60, what=f"events {story}",
    )  # fmt: skip
    assert told >= story


# The operator's own init container of such jobs' workers is not admitted under the restricted one.
@pytest.mark.parametrize("namespace", ["baseline"], indirect=True)
@pytest.mark.parametrize("victim", ["digits-master-0", "digits-worker-0"])
def test_a_master_and_a_worker(faults, submit, hurry, victim):
    """A job of Master and Worker trains, recovers from memory whichever dies, and succeeds."""
    job = submit("--samples-per-second", "300", "--steps", "300", change=_with_master)
    _reaches(job, nodes=2, step=1)
    sealed, resumed = _kill_and_resume(job, faults, victim)
    assert resumed >= sealed
    hurry()
    assert _ends(job) == "Succeeded"
    result = json.loads(re.findall(r"\{.*accuracy.*\}", job.log("digits-master-0"))[-1])
    assert result["accuracy"] >= 0.95
    assert result["world_size"] == 2


def test_without_the_label_nothing_is_touched(cluster, namespace, with_trainer):
    """The same kind of job without the label is stored as it was sent and runs as stock."""
    job = objects.pytorchjob("plain", namespace, ["torchrun", "/tools/hello.py"], elastic=(2, 2))
    job["spec"]["nprocPerNode"] = "1"
    job["spec"]["elasticPolicy"]["rdzvConf"] = [{"key": "last_call_timeout", "value": "1"}]
    sent = with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    apply(cluster, [sent])
    running = RunningJob(cluster, namespace, "plain")
    template = running.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template == sent["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert not any(key.startswith("rover-kf") for key in running.read()["metadata"]["annotations"])
    assert _ends(running) == "Succeeded"
    assert not any("initContainers" in pod["spec"] for pod in running.pods().values())


def test_an_injected_job_does_not_need_the_controller(
    cluster, controller_down, faults, submit, hurry
):
    """With the controller gone an injected job trains, recovers, persists and succeeds; the next
    controller knows of the steps that none has seen."""
    job = submit("--samples-per-second", "300", "--steps", "400")
    assert _injected(job)
    _reaches(job, nodes=2, step=1)
    controller_down()
    sealed, resumed = _kill_and_resume(job, faults, "digits-worker-1")
    assert resumed >= sealed
    _reaches(job, durable_step=40)
    hurry()
    assert _ends(job) == "Succeeded"
    deployment.scale(cluster, 1)
    eventually(
        lambda: names.EVENT_RECORDED in {event["reason"] for event in job.events()},
        within=120,
        what="its run is recorded",
    )
    told = json.loads(job.read()["metadata"]["annotations"][names.STATUS_ANNOTATION])
    assert (told["phase"], told["step"], told["restarts"]) == ("finished", 400, 1)


def test_a_job_starts_without_the_controller(cluster, controller_down, submit):
    """Without the controller a labelled job is admitted untouched; its deletion leaves nothing."""
    controller_down()
    job = submit("--steps", "10")
    assert not _injected(job)
    eventually(lambda: len(job.pods()) == 2, within=60, what="the operator's pods")
    _delete_leaves_nothing(cluster, job)


def _put_by_the_test(item: dict) -> bool:
    return storage.NAMESPACE_LABEL in item["metadata"].get("labels", {})


def _delete_leaves_nothing(cluster, job: RunningJob) -> None:
    kinds = "pytorchjobs,pods,services,secrets,configmaps,jobs,deployments"
    cluster.kubectl("-n", job.namespace, "delete", "pytorchjob", job.name, "--timeout=60s")

    def left() -> list[str]:
        listed = objects.get(cluster, job.namespace, kinds)["items"]
        found = [item for item in listed if not _put_by_the_test(item)]
        names = [f"{item['kind']}/{item['metadata']['name']}" for item in found]
        return [name for name in names if name != "ConfigMap/kube-root-ca.crt"]

    eventually(lambda: not left(), within=90, what=f"nothing left of {job.name}, not {left()}")


def test_delete_leaves_nothing(cluster, submit):
    """Deleting a running injected job leaves no pod, service, secret, claim or finalizer."""
    job = submit("--samples-per-second", "150")
    _reaches(job, step=1)
    assert not job.read()["metadata"].get("finalizers")
    _delete_leaves_nothing(cluster, job)
    claims = objects.get(cluster, job.namespace, "persistentvolumeclaims")["items"]
    assert jobs.CLAIM in [claim["metadata"]["name"] for claim in claims]
    assert all(_put_by_the_test(claim) for claim in claims)


def test_deleting_an_injected_job_without_the_controller(cluster, controller_down, submit):
    """Deleting a running injected job while the controller is away leaves nothing, too."""
    job = submit("--samples-per-second", "150")
    _reaches(job, step=1)
    controller_down()
    _delete_leaves_nothing(cluster, job)


def test_a_deleted_job_leaves_its_last_step(cluster, checkpoints, submit):
    """Its pods, told to end, agree on a step, save it, and make it durable before they go."""
    job = submit("--samples-per-second", "150", change=_without_saves)
    seen = _reaches(job, nodes=2, step=10)["step"]
    _delete_leaves_nothing(cluster, job)
    (written,) = checkpoints.rglob("manifest.json")
    folder = manifest.parse_folder(written.parent.name)
    assert folder
    assert folder.step > seen


def test_applying_the_same_manifest_again_changes_nothing(
    cluster, namespace, with_trainer, shared_claim
):
    """A second kubectl apply of the user's own file leaves the injected job as it was."""
    shared_claim(jobs.CLAIM)
    sent = with_trainer(jobs.digits(namespace), scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    apply(cluster, [sent])
    job = RunningJob(cluster, namespace, "digits")
    assert _injected(job)
    before = job.read()["spec"]
    apply(cluster, [sent])
    assert job.read()["spec"] == before
    assert _injected(job)
