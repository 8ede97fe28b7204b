# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every way to install is taken by a real API server; jobs train on where we are removed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml
from testcluster import admission, binaries, deployment, jobs, settings
from testcluster.commands import run
from testcluster.deployment import DEPLOYMENT, ProjectImages
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api import names
from rover_kf.cluster.kubernetes import config as kubernetes_config
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.doctor import Finding, diagnose
from rover_kf.injection.settings import InjectionSettings
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("controller")]

CHART = settings.REPOSITORY / "manifests" / "helm"
OVERLAYS = settings.REPOSITORY / "manifests" / "overlays"
OURS = ("-l", "app.kubernetes.io/name=rover-kf", "-o", "name")


@pytest.fixture
def images(project_images) -> ProjectImages:
    """Of controller and sidecar."""
    return project_images or ProjectImages("localhost", "dev")


@pytest.fixture
def manifests(cluster, images, tmp_path) -> Callable[[str, str], str]:
    """An overlay as text, with the images to test, in a namespace."""

    def make(name: str, namespace: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        deployment.overlay(folder, OVERLAYS / name, images)
        file = folder / "kustomization.yaml"
        file.write_text(f"{file.read_text()}namespace: {namespace}\n")
        return cluster.kubectl("kustomize", str(folder))

    return make


@pytest.fixture
def helm(cluster, images) -> Callable[..., str]:
    """Run Helm on the cluster: a verb, a release of the chart in a namespace, further words."""
    if shutil.which("go") is None:
        pytest.skip("Go is not on PATH: Helm cannot be compiled")  # never in CI: see conftest.py
    program = binaries.compiled(binaries.HELM) / "helm"
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    named = [
        f"--set=images.{part}={images.prefix}/rover-kf-{part}:{images.tag}"
        for part in ("controller", "sidecar")
    ]

    def call(verb: str, namespace: str, *words: str) -> str:
        chart = [] if verb == "uninstall" else [CHART, *named]
        whole = [program, verb, "rover-kf", *chart, "--namespace", namespace, *words]
        return run(whole, env=environment)

    return call


@pytest.mark.parametrize(
    ("overlay", "where"),
    [("standalone", deployment.NAMESPACE), ("kubeflow", "kubeflow"), ("namespaced", "")],
)
def test_an_overlay_is_taken(cluster, manifests, namespace, overlay, where):
    """By admission, schemas and pod security of a real API server, each object; a dry run."""
    text = manifests(overlay, where or namespace)
    told = cluster.kubectl("apply", "--dry-run=server", "-o", "name", "-f", "-", text=text)
    assert len(told.split()) == len(list(yaml.safe_load_all(text)))
    print(f"{overlay}: {len(told.split())} objects taken")


def test_what_helm_renders_is_taken(cluster, helm, namespace):
    """The same of the chart with everything in it."""
    parts = "cordon=true,deleteLost=true,networkPolicies=true,kubeflowRoles=true"
    values = ("--set", f"{parts},historyClaim.enabled=true")
    text = helm("template", namespace, *values)
    told = cluster.kubectl("apply", "--dry-run=server", "-o", "name", "-f", "-", text=text)
    assert len(told.split()) == len([one for one in yaml.safe_load_all(text) if one])
    print(f"chart: {len(told.split())} objects taken")


@pytest.fixture
def remove(cluster, manifests, controller) -> Iterator[Callable[[], None]]:
    """Delete all that the standalone overlay has; it is there again after the test."""
    text = manifests("standalone", controller)
    yield lambda: cluster.kubectl("delete", "-f", "-", "--timeout=180s", text=text, timeout=200)
    cluster.kubectl("apply", "-f", "-", text=text)
    deployment.wait(cluster)


@pytest.fixture
def start(cluster, namespace, with_trainer, shared_claim):
    """Apply a slow digits job, changed if need be; returns it running."""
    shared_claim(jobs.CLAIM)

    def apply_it(change: Callable[[dict], dict] = dict) -> RunningJob:
        job = jobs.digits(namespace, "--samples-per-second", "150", "--steps", "900")
        job = with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)
        apply(cluster, [change(job)])
        return RunningJob(cluster, namespace, job["metadata"]["name"])

    return apply_it


@pytest.fixture
def end(hurry) -> Callable[[RunningJob], str]:
    """Let a job go on as fast as it can; its verdict."""

    def wait(job: RunningJob) -> str:
        hurry()
        return eventually(job.verdict, within=400, every=1, what="the job's end")

    return wait


def _step(job: RunningJob) -> int:
    return job.status().get("step") or 0


@pytest.mark.at_length
def test_jobs_outlive_us_and_helm_brings_us_back(cluster, remove, start, end, helm):
    """All manifests deleted while a job trains: it trains on, with nobody to look after it. Then
    Helm installs us elsewhere: jobs are injected again; and the first job ends as Succeeded."""
    job = start()
    begun = eventually(lambda: _step(job), within=240, every=0.5, what="a first step")
    remove()
    assert not cluster.kubectl("get", "mutatingwebhookconfigurations,clusterroles", *OURS)
    assert not deployment.is_there(cluster)
    eventually(lambda: _step(job) > begun + 20, within=240, every=0.5, what="more steps")
    place = f"{job.namespace}-helm"
    helm("install", place, "--create-namespace", "--wait", "--timeout", "3m")
    try:
        admission.wait(cluster, injected=True)
        assert end(job) == "Succeeded"
    finally:
        helm("uninstall", place, "--wait")
        cluster.kubectl("delete", "namespace", place, "--timeout=120s", timeout=140)
    assert not cluster.kubectl("get", "mutatingwebhookconfigurations,clusterroles", *OURS)


@pytest.fixture
def patched(images, namespace, tmp_path) -> Callable[[dict], dict]:
    """A job as `rover-kf patch` writes it for the controller of its namespace."""
    told = {
        "ROVER_CONTROLLER_ACCOUNT": f"{namespace}:{DEPLOYMENT}",
        "ROVER_SIDECAR_IMAGE": f"{images.prefix}/rover-kf-sidecar:{images.tag}",
    }

    def change(job: dict) -> dict:
        (tmp_path / "job.yaml").write_text(json.dumps(job))
        words = [sys.executable, "-m", "rover_kf.cli", "patch", str(tmp_path / "job.yaml")]
        environment = {**os.environ, **told}
        return yaml.safe_load(run(words, env=environment))

    return change


@pytest.fixture
def there(cluster, remove, manifests, namespace) -> Callable[[], dict]:
    """The controller in the test's namespace alone, none for the cluster; returns its pod."""
    remove()
    cluster.kubectl("apply", "-f", "-", text=manifests("namespaced", namespace))
    where = ("-n", namespace)
    words = ("rollout", "status", f"deploy/{DEPLOYMENT}", "--timeout=180s")
    cluster.kubectl(*where, *words, timeout=200)
    asked = (*where, "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "json")

    def pod() -> dict:
        (found,) = json.loads(cluster.kubectl(*asked))["items"]
        return found

    return pod


def _told(job: RunningJob) -> dict:
    """What the controller last wrote on the job."""
    return json.loads(job.read()["metadata"]["annotations"].get(names.STATUS_ANNOTATION, "{}"))


@pytest.fixture
def administrator(cluster, namespace, tmp_path) -> KubernetesApi:
    """The API server as somebody asks it who has all rights in the test's namespace alone."""
    where, who = ("-n", namespace), f"--serviceaccount={namespace}:owner"
    cluster.kubectl(*where, "create", "serviceaccount", "owner")
    cluster.kubectl(*where, "create", "rolebinding", "owner", "--clusterrole=admin", who)
    words = ("--verb=*", "--resource=pytorchjobs.kubeflow.org,pods,events,deployments.apps")
    cluster.kubectl(*where, "create", "role", "owner-of-jobs", *words)
    cluster.kubectl(*where, "create", "rolebinding", "jobs", "--role=owner-of-jobs", who)
    token = cluster.kubectl(*where, "create", "token", "owner").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = tmp_path / "owner.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return kubernetes_config.from_environment(kubeconfig=str(path)).api


@pytest.fixture
def doctor(administrator, images, namespace) -> Callable[[RunningJob], dict[str, Finding]]:
    """What the doctor says of the namespace's own controller, to who patches jobs for it."""
    image = f"{images.prefix}/rover-kf-sidecar:{images.tag}"
    settings = InjectionSettings(image, f"{namespace}:{DEPLOYMENT}")

    def look(job: RunningJob) -> dict[str, Finding]:
        found = diagnose(administrator, namespace, job.read(), settings=settings)
        for one in found.findings:
            print(f"{one.verdict} {one.check}: {one.message}")
        return {one.check: one for one in found.findings}

    return look


@pytest.fixture
def log(cluster, namespace) -> Callable[[str], list[str]]:
    """Lines of the controller's log in the test's namespace that have these words."""
    words = ("-n", namespace, "logs", f"deploy/{DEPLOYMENT}")
    return lambda part: [line for line in cluster.kubectl(*words).splitlines() if part in line]


@pytest.fixture
def looked_after(there, start, patched) -> RunningJob:
    """A job that was patched in the namespace, once its controller has told of a step."""
    assert there()
    job = start(patched)
    eventually(lambda: _told(job).get("step"), within=240, every=1, what="a step, as we tell it")
    return job


@pytest.mark.at_length
def test_in_one_namespace_alone(looked_after, there, doctor, log, end):
    """With rights in a restricted namespace alone: a job that was patched there is looked after
    and ends as Succeeded, and its story is told; the controller never failed. It says once that it
    may not read nodes; and the doctor, asked by the namespace's administrator, finds it sound."""
    job = looked_after
    found = doctor(job)
    assert [one for one in found.values() if one.verdict == "broken"] == []
    ours = ("controller", "controller-rights", "webhook", "controller-account")
    assert {check: found[check].verdict for check in ours} == dict.fromkeys(ours, "good")
    assert len(log("whether nodes are silent")) == 1
    assert end(job) == "Succeeded"
    eventually(
        lambda: "TrainingFinished" in {one["reason"] for one in job.events()},
        within=60,
        every=1,
        what="the story's end",
    )
    assert there()["status"]["containerStatuses"][0]["restartCount"] == 0
