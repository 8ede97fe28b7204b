# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A kind of job is one folder and one registration."""

from __future__ import annotations

import pathlib
import re

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.client import manifests, patches
from rover_kf.cluster.kubernetes import conversion
from rover_kf.injection.inject import inject, remove
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.reconcilers import plan, policy_source
from rover_kf.reconcilers.plan import Observed
from tests.support.job_kinds.inventedjob.kind import INVENTEDJOB
from tests.support.jobs.job_manifests import environment_of, policy_of

ROOT = pathlib.Path(__file__).parents[3]
SEAM = ROOT / "rover_kf" / "job_kinds"


@pytest.fixture
def registered(monkeypatch):
    """The one registration."""
    monkeypatch.setattr(registry, "REGISTERED", (*registry.REGISTERED, INVENTEDJOB))


def make_invented(**spec):
    trainer = {
        "name": "inventor",
        "image": "python-torch:latest",
        "command": ["torchrun", "train.py"],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    worker = {"replicas": 2, "template": {"spec": {"containers": [trainer]}}}
    return {
        "apiVersion": "example.org/v2",
        "kind": "InventedJob",
        "metadata": {
            "name": "demo",
            "namespace": "team",
            "labels": {names.INJECT_LABEL: "true"},
            "annotations": {
                f"{names.PREFIX}scaling.max": "4",
                f"{names.PREFIX}checkpoint.every": "7",
            },
        },
        "spec": {"inventedReplicaSpecs": {"Worker": worker}, **spec},
    }


def stored(manifest, **status):
    metadata = {**manifest["metadata"], "uid": "u", "resourceVersion": "1"}
    return {**manifest, "metadata": metadata, "status": status}


@pytest.mark.parametrize("kind", registry.job_kinds(), ids=lambda kind: kind.kind)
def test_the_keys_of_a_kind_are_in_its_folder_alone(kind):
    """No other module of the programs names them, nor a kind that it does not make itself."""
    folder = SEAM / kind.kind.lower()
    found = [
        path
        for package in ("rover_kf", "controller", "components")
        for path in (ROOT / package).rglob("*.py")
        if kind.specs in path.read_text() and folder not in path.parents
    ]
    assert found == []
    assert kind.specs in (folder / "kind.py").read_text()


def test_no_module_asks_which_kind_a_job_is():
    """The kind answers what differs: its name is compared with in the seam alone."""
    asked = re.compile(r"kind\b[^\n]* (?:==|!=|is|is not) (?:names\.)?(?:PYTORCHJOB|TFJOB)\b")
    found = [
        path
        for package in ("rover_kf", "controller", "components")
        for path in (ROOT / package).rglob("*.py")
        if SEAM not in path.parents and asked.search(path.read_text())
    ]
    assert found == []


def test_an_unregistered_kind_is_rejected_with_those_that_are():
    """By the client, by injection and where a job is read."""
    with pytest.raises(errors.ManifestError, match="PyTorchJob or TFJob"):
        manifests.load(make_invented())
    with pytest.raises(errors.ManifestError, match="PyTorchJob or TFJob"):
        inject(make_invented(), settings=InjectionSettings("sidecar:1"))
    with pytest.raises(errors.InputError, match="PyTorchJob or TFJob"):
        conversion.parse_job(stored(make_invented()))


@pytest.mark.usefixtures("registered")
def test_a_third_kind_is_parsed_injected_and_removed():
    """By the client and by injection, which find its own keys, container and group."""
    source = manifests.load(make_invented())
    assert source.key == JobKey("team", "demo", "InventedJob")
    assert manifests.parse_name("team", "inventedjob/demo") == source.key
    job = JobSpec.parse(source.job)
    assert (job.kind, job.workers, job.masters) == (INVENTEDJOB, 2, 0)
    assert [item.path for item in job.replicas] == ["spec.inventedReplicaSpecs.Worker"]
    done = inject(source.job, settings=InjectionSettings("sidecar:1")).manifest
    pod = done["spec"]["inventedReplicaSpecs"]["Worker"]["template"]["spec"]
    (trainer,) = pod["containers"]
    assert trainer["command"] == ["/bin/sh", "/rover/runtime/rover-run", "train.py"]
    sidecar = pod["initContainers"][1]
    assert sidecar["name"] == names.SIDECAR_CONTAINER
    variables = environment_of(sidecar)
    assert variables[names.ENV_COORDINATOR] == "demo-worker-0"
    assert variables[names.ENV_MAX_NODES] == "4"
    assert policy_of(variables).checkpoint.every == 7
    bare = remove(done)["spec"]["inventedReplicaSpecs"]["Worker"]["template"]["spec"]
    assert (
        bare["containers"]
        == make_invented()["spec"]["inventedReplicaSpecs"]["Worker"]["template"]["spec"][
            "containers"
        ]
    )


@pytest.mark.usefixtures("registered")
def test_a_third_kind_rejects_what_it_does_not_support():
    """By its own check, and what has not the shape of its jobs by the common one."""
    job = make_invented()
    job["metadata"]["annotations"][f"{names.PREFIX}checkpoint.shards"] = "/shards"
    with pytest.raises(errors.PolicyError, match=r"checkpoint\.shards"):
        inject(job, settings=InjectionSettings("sidecar:1"))
    job = make_invented()
    job["spec"]["inventedReplicaSpecs"]["Server"] = {}
    with pytest.raises(errors.ManifestError, match="Leader, Worker"):
        inject(job, settings=InjectionSettings("sidecar:1"))
    with pytest.raises(errors.ManifestError, match=r"example\.org/v2"):
        inject({**make_invented(), "apiVersion": "v1"}, settings=InjectionSettings("sidecar:1"))


@pytest.mark.usefixtures("registered")
def test_a_third_kind_is_observed_and_changed():
    """Its replicas, its phase, its bounds; a patch has its own keys."""
    manifest = make_invented()
    job = conversion.parse_job(stored(manifest, state="Running"))
    assert (job.key.kind, dict(job.replicas), job.phase) == (
        "InventedJob",
        {"worker": 2},
        "Running",
    )
    assert not job.suspended
    ended = conversion.parse_job(stored(manifest, state="Broken", endedAt="2026-01-01T00:00:00Z"))
    assert (ended.phase, ended.finished, ended.finished_at) == ("Failed", True, 1767225600.0)
    policy = policy_source.policy_from_job(job)
    assert (policy.min, policy.max) == (2, 4)
    assert policy_source.refusal(job) == ""
    observed = Observed(job, (), None, policy)
    assert observed.replaceable
    assert observed.standalone_types == frozenset()
    resized = {"spec": {"inventedReplicaSpecs": {"Worker": {"replicas": 3}}}}
    assert patches.resize_job(job, 3).patch == resized
    assert plan.worker_spec(job, 3) == resized["spec"]
    assert patches.suspend_job(job, force=True).patch == {"spec": {"suspend": True}}
    paused = conversion.parse_job(stored(make_invented(suspend=True)))
    assert paused.suspended
    assert patches.resume_job(paused).patch == {"spec": {"suspend": False}}


@pytest.mark.usefixtures("registered")
def test_a_third_kind_is_found_on_a_cluster():
    """By its own path, and its pods by the name of its operator."""
    assert INVENTEDJOB.path("team") == "/apis/example.org/v2/namespaces/team/inventedjobs"
    assert registry.kind_operated_by("inventedjob-controller") is INVENTEDJOB
