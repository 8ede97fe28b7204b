# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything starts, by key, value and what is allowed."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.injection.validation.validate import validate
from tests.support.jobs.job_manifests import make_job, pod_of, trainer_of

MOUNT = {"name": "ckpt", "mountPath": "/ckpt"}
TRAINER = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[pytorch]"


def test_a_good_job_gives_its_policy():
    """validate() returns the policy of a PyTorchJob and of a TFJob."""
    assert validate(make_job(policy={"checkpoint.every": "9"})).checkpoint.every == 9
    job = make_job(kind="TFJob", masters=1, command=["python", "x.py"])
    assert validate(job, defaults={"failures.restarts": "4"}).failures.restarts == 4


def change(path, value):
    """A function that sets (or with ... removes) what stands at a path of the manifest."""

    def apply(job):
        owner = job
        for key in path[:-1]:
            owner = owner[key]
        if value is ...:
            del owner[path[-1]]
        else:
            owner[path[-1]] = value

    return apply


WORKER = ("spec", "pytorchReplicaSpecs", "Worker")
POD = (*WORKER, "template", "spec")
CONTAINER = (*POD, "containers", 0)


@pytest.mark.parametrize(
    ("broken", "key", "allowed"),
    [
        (change(("kind",), "Pod"), "kind", "PyTorchJob or TFJob"),
        (change(("kind",), ...), "kind", "PyTorchJob or TFJob"),
        (change(("apiVersion",), "v1"), "apiVersion", "kubeflow.org/v1"),
        (change(("metadata",), ...), "metadata", "a mapping"),
        (change(("metadata", "name"), ...), "metadata.name", "the job's name"),
        (change(("metadata", "labels"), ["x"]), "metadata.labels", "a mapping"),
        (
            change(("metadata", "labels", names.INJECT_LABEL), "false"),
            f"metadata.labels[{names.INJECT_LABEL}]",
            '"true", or no such label',
        ),
        (change(("spec",), None), "spec", "a mapping"),
        (change(("spec", "pytorchReplicaSpecs"), []), "spec.pytorchReplicaSpecs", "a mapping"),
        (change(("spec", "pytorchReplicaSpecs"), {}), "spec.pytorchReplicaSpecs", "a Worker"),
        (
            change(("spec", "pytorchReplicaSpecs", "Launcher"), {}),
            "spec.pytorchReplicaSpecs.Launcher",
            "Master, Worker",
        ),
        (change((*WORKER, "replicas"), 0), f"{'.'.join(WORKER)}.replicas", "1 or more"),
        (change((*WORKER, "replicas"), 2.0), f"{'.'.join(WORKER)}.replicas", "1 or more"),
        (change((*WORKER, "replicas"), "2"), f"{'.'.join(WORKER)}.replicas", "1 or more"),
        (change((*WORKER, "template"), ...), f"{'.'.join(WORKER)}.template", "a mapping"),
        (change((*POD, "containers"), ...), f"{'.'.join(POD)}.containers", "named pytorch"),
        (change((*CONTAINER, "name"), "main"), f"{'.'.join(POD)}.containers", "named pytorch"),
        (change((*CONTAINER, "command"), "torchrun x.py"), f"{TRAINER}.command", "a list"),
        (change((*CONTAINER, "args"), ["--lr", 1]), f"{TRAINER}.args", "quote numbers"),
        (change((*CONTAINER, "env"), [{"value": "x"}]), f"{TRAINER}.env[0]", "with a name"),
        (change((*CONTAINER, "volumeMounts"), [{}]), f"{TRAINER}.volumeMounts[0]", "mountPath"),
        (
            change((*CONTAINER, "resources"), {"limits": {"memory": "lots"}}),
            f"{TRAINER}.resources",
            "quantities",
        ),
        (change(("spec", "elasticPolicy"), []), "spec.elasticPolicy", "a mapping"),
    ],
)
def test_a_broken_manifest_is_refused_by_name(broken, key, allowed):
    """Each thing that is missing or wrong is named with its place and what may stand there."""
    job = make_job()
    broken(job)
    with pytest.raises(errors.ManifestError) as caught:
        validate(job, source="job.yaml")
    assert caught.value.key == key
    assert allowed in caught.value.allowed
    assert str(caught.value).startswith(f"job.yaml: {key} is ")


def test_two_masters_are_refused():
    """A PyTorchJob has one master at most."""
    with pytest.raises(errors.ManifestError, match=r"Master\.replicas is 2; allowed: 1"):
        validate(make_job(masters=2))


@pytest.mark.parametrize(
    ("options", "error", "key"),
    [
        ({"elastic": (3, 2)}, errors.ManifestError, "spec.elasticPolicy.minReplicas"),
        ({"elastic": (0, 2)}, errors.ManifestError, "spec.elasticPolicy.minReplicas"),
        ({"elastic": (3, 4)}, errors.ManifestError, "spec.pytorchReplicaSpecs.Worker.replicas"),
        (
            {"policy": {"scaling.max": "1"}},
            errors.ManifestError,
            "spec.pytorchReplicaSpecs.Worker.replicas",
        ),
        (
            {"policy": {"scaling.min": "4"}, "elastic": (1, 3)},
            errors.PolicyError,
            "rover-kf.io/scaling.min",
        ),
    ],
)
def test_bounds_that_contradict_are_refused(options, error, key):
    """min above max, and replicas outside of them, from either place that states them."""
    with pytest.raises(error) as caught:
        validate(make_job(**options))
    assert caught.value.key == key


def test_two_autoscalers_are_refused():
    """scaling.mode auto beside elasticPolicy.metrics would have two writers of replicas."""
    job = make_job(elastic=(1, 3), policy={"scaling.mode": "auto"})
    job["spec"]["elasticPolicy"]["metrics"] = [{"type": "Resource"}]
    with pytest.raises(errors.PolicyError, match="autoscaler of its own"):
        validate(job)
    del job["metadata"]["annotations"]
    validate(job)


def test_an_arena_larger_than_the_pods_memory_is_refused():
    """checkpoint.arena above the trainer's limit names both sizes; a request is no limit."""
    job = make_job(memory="1Gi", policy={"checkpoint.arena": "2Gi"})
    with pytest.raises(errors.PolicyError, match=r"arena is '2Gi'.*limit, 1Gi"):
        validate(job)
    trainer_of(job)["resources"] = {"requests": {"memory": "1Gi"}}
    validate(job)


@pytest.mark.parametrize(
    ("path", "mount", "volume", "allowed"),
    [
        ("/ckpt", None, None, "a mount that holds /ckpt"),
        ("/ckpts/x", MOUNT, None, "a mount that holds /ckpts/x"),
        ("/ckpt", {**MOUNT, "readOnly": True}, None, "may be written"),
        ("/ckpt", MOUNT, {"configMap": {"name": "x"}}, "may be written"),
        (
            "/ckpt",
            MOUNT,
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            "may be written",
        ),
        ("/ckpt", {**MOUNT, "subPathExpr": "$(POD)"}, None, "subPath"),
    ],
)
def test_storage_that_cannot_be_written_is_refused(path, mount, volume, allowed):
    """A path outside every mount, or on one that cannot be written or shared, is refused."""
    job = make_job(mount=mount, volume=volume, policy={"checkpoint.path": path})
    with pytest.raises(errors.ManifestError) as caught:
        validate(job)
    assert allowed in caught.value.allowed


@pytest.mark.parametrize("path", ["/rover/ckpt", "/ckpt/../etc", "s3://bucket/../other"])
def test_paths_that_are_never_storage(path):
    """Our own memory volume, and paths with .., are refused."""
    with pytest.raises(errors.PolicyError, match=r"checkpoint\.path"):
        validate(make_job(mount=MOUNT, policy={"checkpoint.path": path}))


@pytest.mark.parametrize(
    "reserve",
    [
        lambda pod: pod["containers"].append({"name": "rover-sidecar", "image": "x"}),
        lambda pod: pod.update(initContainers=[{"name": "rover-runtime", "image": "x"}]),
        lambda pod: pod.update(volumes=[{"name": "rover", "persistentVolumeClaim": {}}]),
        lambda pod: pod.update(volumes=[{"name": "rover-token", "secret": {}}]),
        lambda pod: pod["containers"][0].update(
            volumeMounts=[{"name": "mine", "mountPath": "/rover/data"}]
        ),
    ],
)
def test_names_and_places_of_ours_are_reserved(reserve):
    """A user's container, volume or mount where ours must go is refused, not overwritten."""
    job = make_job()
    reserve(pod_of(job))
    with pytest.raises(errors.ManifestError, match="rover-kf adds its own"):
        validate(job)


def test_what_we_wrote_is_not_reserved_against_us():
    """An injected job is valid."""
    validate(inject(make_job(), settings=InjectionSettings("image")).manifest)


def test_a_policy_in_a_pod_template_is_refused():
    """Nobody reads it there: the job would train without what it asks for. The job's own beside it,
    as kustomize writes both, and other annotations are fine."""
    path = "rover-kf.io/checkpoint.path"
    job = make_job(workers=1, mount=MOUNT)
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["metadata"] = {"annotations": {path: "/ckpt", "rover-kf.io/other": "x", "a": "b"}}
    with pytest.raises(errors.ManifestError, match=r"Worker\.template.*allowed: metadata\.annotat"):
        validate(job)
    job["metadata"]["annotations"] = {path: "/ckpt"}
    assert validate(job).checkpoint.path == "/ckpt"
