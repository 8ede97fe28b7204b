# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled components as pods on a real cluster, with the rights that Kubeflow gives to steps.

No backend of Kubeflow Pipelines runs here: what its driver fills in is filled in by
testcluster.compiled_pipeline, and pods are made by testcluster.step_pod. All else is real: what was
compiled, the image, the service accounts, the job, the controller.
"""

from __future__ import annotations

import base64
import json
import uuid

import pytest
import yaml
from testcluster import deployment, jobs, step_rights, torch_image, wrapped_component
from testcluster import workflows as workflow_objects
from testcluster.cluster import Cluster
from testcluster.compiled_pipeline import Run
from testcluster.deployment import SIDECAR, STEPS
from testcluster.images import STEPS_IMAGE, Images
from testcluster.jobs import RunningJob
from testcluster.objects import Object, apply, get
from testcluster.settings import REPOSITORY, cache
from testcluster.step_pod import Backend, Outputs, Own, StepPod

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [
    # The image of steps is built for these tests alone, and each starts pod after pod.
    pytest.mark.at_length,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("controller", "workflows"),
]

COMPONENTS = REPOSITORY / "components"
RIGHTS = {
    "pipeline-runner": step_rights.PIPELINE_RUNNER,
    "default-editor": step_rights.DEFAULT_EDITOR,
}
HISTORY = f"https://rover-kf-webhook.{deployment.NAMESPACE}.svc"
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/rover-kf-webhook"


@pytest.fixture(scope="module")
def steps_image(cluster, project_images) -> str:
    """What steps run; on a foreign cluster that --images does not name, the compiled one."""
    if not isinstance(cluster, Cluster):
        return project_images.named(STEPS) if project_images else ""
    cluster.load(Images(cache()).steps())
    return STEPS_IMAGE


@pytest.fixture(scope="module")
def workflows(cluster):
    """The kind with which a run goes."""
    with workflow_objects.known(cluster):
        yield


@pytest.fixture
def backend(cluster, namespace, project_images, steps_image, toolbox_image):
    """Starts steps of a run of this namespace, with the rights of a service account."""

    def of(account: str) -> Backend:
        apply(cluster, step_rights.account(namespace, account, RIGHTS[account]))
        variables = {}
        if project_images is not None:
            variables["ROVER_SIDECAR_IMAGE"] = project_images.named(SIDECAR)
        made = workflow_objects.made(cluster, namespace, "train")
        return Backend(cluster, namespace, account, made, steps_image, toolbox_image, variables)

    return of


@pytest.fixture
def manifest(namespace, with_trainer, shared_claim):
    """Make the text of a small job that checkpoints; one worker, or up to two."""
    shared_claim(jobs.CLAIM)

    def make(*options: str) -> str:
        job = jobs.digits(namespace, *options, traced=False)
        job["metadata"]["annotations"]["rover-kf.io/scaling.mode"] = "off"
        job["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2}
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
        return yaml.safe_dump(with_trainer(job, scripts=jobs.SAMPLES))

    return make


def _component(name: str, run_id: str, /, **arguments: object) -> Run:
    return Run(COMPONENTS / name / "component.yaml", run_id, arguments)


def _alone(backend: Backend, name: str, run_id: str, /, **arguments: object) -> StepPod:
    """Start a component of one task by itself."""
    compiled = _component(name, run_id, **arguments)
    (task,) = compiled.tasks
    return backend.start(compiled.step(task))


def _may(cluster, namespace: str, account: str, verb: str, what: str) -> bool:
    user = f"system:serviceaccount:{namespace}:{account}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": _attributes(namespace, verb, what)},
    }
    told = cluster.kubectl("create", "-f", "-", "-o", "json", text=json.dumps(review))
    return bool(json.loads(told)["status"]["allowed"])


def _attributes(namespace: str, verb: str, what: str) -> dict[str, str]:
    resource, _, group = what.partition(".")
    resource, _, subresource = resource.partition("/")
    named = {"resource": resource, "subresource": subresource, "group": group}
    return {
        "namespace": namespace,
        "verb": verb,
        **{key: text for key, text in named.items() if text},
    }


def test_a_run_from_recommendation_to_cleanup(cluster, namespace, backend, manifest):
    """The compiled pipeline and what stands beside it, step by step as pods of a stand-alone
    Kubeflow Pipelines, whose account may not even read Events."""
    steps = backend("pipeline-runner")
    assert not _may(cluster, namespace, "pipeline-runner", "list", "events")
    run_id = str(uuid.uuid4())
    text = manifest("--samples-per-second", "400")
    varied = _alone(steps, "vary_manifest", run_id, manifest=text, arguments="--steps 100").wait()
    trial = varied.parameters["Output"]
    run = Run(COMPONENTS / "pipelines" / "train.yaml", run_id, {"manifest": trial})
    given: dict[str, Outputs] = {}
    for name in ("recommend-resources", "patch-manifest"):
        given[name] = steps.start(run.step(name)).wait()
        run.gave(name, given[name].parameters)
    _sizes_and_patched(given)
    launching = steps.start(run.step("launch-training-job"))
    patched = given["patch-manifest"].parameters["Output"]
    watching = _alone(steps, "watch_autoscaling", run_id, manifest=patched, run=run_id)
    given["launch-training-job"] = launched = launching.wait()
    run.gave("launch-training-job", launched.parameters)
    job = launched.parameters["Output"]
    assert "Events are not told" in launched.log
    assert launched.metadata["metrics"]["steps"] == 100
    exporting = steps.start(
        _component("export_checkpoint", run_id, path="/checkpoints", job=job).step(
            "export-checkpoint"
        ),
        own=Own(claims={"/checkpoints": jobs.CLAIM}),
    )
    reporting = steps.start(run.step("training-report"))
    _followed(watching.wait(), job)
    _exported(exporting.wait())
    reported = reporting.wait()
    assert reported.parameters["Output"] == "succeeded"
    assert "goodput" not in reported.metadata["metrics"]
    assert b"<html" in reported.files["report"]
    assert job in reported.files["summary"].decode().replace("\\", "")
    cleaned = steps.start(run.step("cleanup-job")).wait()
    assert f"{namespace}/{job} is Succeeded: left" in cleaned.log
    running = RunningJob(cluster, namespace, job)
    assert running.verdict() == "Succeeded"
    _told_by_the_controller(running, steps, run_id)


def _sizes_and_patched(given: dict[str, Outputs]) -> None:
    sizes = json.loads(given["recommend-resources"].parameters["Output"])
    assert {"replicas", "memory"} <= {one["name"] for one in sizes["quantities"]}
    assert json.loads(given["recommend-resources"].files["sizes"]) == sizes
    patched = yaml.safe_load(given["patch-manifest"].parameters["Output"])
    assert names.INJECTED_ANNOTATION in patched["metadata"]["annotations"]
    worker = patched["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (worker["replicas"], type(worker["replicas"])) == (1, int)
    assert worker["template"]["spec"]["containers"][0]["command"][-2:] == ["--steps", "100"]


def _followed(watched: Outputs, job: str) -> None:
    assert watched.parameters["Output"] == job
    assert watched.metadata["metrics"]["replicas"] == 1
    assert "1 to 1 Worker replicas" in watched.files["summary"].decode()


def _exported(outputs: Outputs) -> None:
    assert outputs.parameters["Output"] == 100
    assert outputs.metadata["model"]["format"] == "safetensors"
    content = outputs.files["model"]
    length = int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8 : 8 + length])
    assert any(name.startswith("model.") for name in tensors)


def _told_by_the_controller(job: RunningJob, steps: Backend, run_id: str) -> None:
    """Of a job that is deleted the controller's history alone knows: a step reads it over HTTPS,
    with its own account's token, by the certificate that a ConfigMap brings."""
    cluster, namespace = job.cluster, job.namespace
    eventually(
        lambda: names.EVENT_RECORDED in {event["reason"] for event in job.events()}, within=60
    )
    told = json.loads(cluster.get_raw(WEBHOOK))["webhooks"][0]["clientConfig"]["caBundle"]
    certificate = {"ca.crt": base64.b64decode(told).decode()}
    metadata = {"name": "authority", "namespace": namespace}
    brought = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": certificate}
    apply(cluster, [brought])
    cluster.kubectl("-n", namespace, "delete", "pytorchjob", job.name, "--timeout=60s")
    run = _component("training_report", run_id, job=job.name, history=HISTORY)
    own = Own(
        config_maps={"/authority": "authority"},
        variables={"ROVER_KF_HISTORY_CA": "/authority/ca.crt"},
    )
    reported = steps.start(run.step("training-report"), attempt=1, own=own).wait()
    assert reported.parameters["Output"] == "succeeded"
    assert reported.metadata["metrics"]["steps"] == 100
    assert 0 < reported.metadata["metrics"]["goodput"] <= 1  # which the job itself did not tell


def test_a_killed_launch_step_that_retries_adopts_its_job(
    cluster, namespace, backend, manifest, faults
):
    """As a profile's steps, which may not scale: the second attempt waits for the same job, whose
    pods never stopped. When nobody comes back the controller ends it; it goes with its run."""
    steps = backend("default-editor")
    assert not _may(cluster, namespace, "default-editor", "patch", "pytorchjobs/scale.kubeflow.org")
    run_id = str(uuid.uuid4())
    text = manifest("--samples-per-second", "100", "--steps", "100000")
    launch = _component("launch_training_job", run_id, manifest=text, run=run_id).step(
        # As a backend fills it in for task.set_memory_limit("1200Mi").
        "launch-training-job",
        task_config={"resources": {"limits": {"memory": "1200Mi"}}},
    )
    first = steps.start(launch)
    job = _launched(cluster, namespace)
    eventually(lambda: (job.status().get("sealed_step") or 0) >= 20, within=180, every=0.5)
    uid, pods = job.read()["metadata"]["uid"], _uids(job)
    _passed_on(job)
    faults.kill(namespace, first.name, container="main", matching="executor_main")
    assert eventually(first.exit_code, within=60, every=0.3, what="the step's end") == 137
    second = steps.start(launch, attempt=1)
    eventually(lambda: _holder(job).startswith(f"{second.name}:"), within=120, every=0.5,
               what="the second attempt holds the lease")  # fmt: skip
    assert f"{namespace}/{job.name} is there already: waiting for it" in second.log()
    assert (job.read()["metadata"]["uid"], _uids(job)) == (uid, pods)
    assert [one["metadata"]["name"] for one in get(cluster, namespace, "pytorchjobs")["items"]] == [
        job.name
    ]
    assert job.status()["restarts"] == 0
    before = job.status()["step"]
    eventually(lambda: job.status().get("step", 0) > before, within=60, every=0.3)

    faults.kill(namespace, second.name, container="main", matching="executor_main")
    eventually(second.exit_code, within=60, every=0.3, what="the second step's end")
    _ends_without_its_step(cluster, job, second)
    cluster.kubectl("-n", namespace, "delete", "workflow", "train", "--wait=false")
    eventually(lambda: not get(cluster, namespace, "pytorchjobs")["items"], within=120, every=0.5,
               what="the job goes with its run")  # fmt: skip


def _launched(cluster, namespace: str) -> RunningJob:
    found = eventually(
        lambda: get(cluster, namespace, "pytorchjobs")["items"], within=120, every=0.5, what="a job"
    )
    return RunningJob(cluster, namespace, found[0]["metadata"]["name"])


def _uids(job: RunningJob) -> set[str]:
    return {pod["metadata"]["uid"] for pod in job.pods().values()}


def _holder(job: RunningJob) -> str:
    return job.read()["metadata"]["annotations"].get(names.LAUNCH_RENEWAL_ANNOTATION, "")


def _passed_on(job: RunningJob) -> None:
    """The job has its run as an owner, and what the task itself states of its resources."""
    (owner,) = job.read()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Workflow", "train")
    (pod,) = job.pods().values()
    container = next(one for one in pod["spec"]["containers"] if one["name"] == "pytorch")
    assert container["resources"]["limits"]["memory"] == "1200Mi"


def _ends_without_its_step(cluster, job: RunningJob, step: StepPod) -> None:
    """A lease of seconds instead of minutes from here on: nobody counts on it any more."""
    key = f"{names.PREFIX}launch.lease=9"
    words = ("-n", job.namespace, "annotate", "pytorchjob", job.name, key, "--overwrite")
    cluster.kubectl(*words)
    eventually(lambda: "Suspended" in job.conditions(), within=90, every=0.5, what="suspended")
    told: dict[str, str] = eventually(lambda: _told(job), within=30, every=0.5, what="Events")
    assert step.name in told[names.EVENT_LAUNCHER_SILENT]
    assert "launch.lease" in told[names.EVENT_LAUNCH_LEASE_EXPIRED]
    eventually(lambda: not job.pods(), within=90, every=0.5, what="no pod of the suspended job")


def _told(job: RunningJob) -> dict[str, str]:
    found = {event["reason"]: event["message"] for event in job.events()}
    return (
        found
        if {names.EVENT_LAUNCHER_SILENT, names.EVENT_LAUNCH_LEASE_EXPIRED} <= set(found)
        else {}
    )


@pytest.fixture(scope="module")
def torch_images(cluster) -> None:
    """One with torch alone, one with kfp and rover-kf as well."""
    if not isinstance(cluster, Cluster):
        pytest.skip("images with torch are made on our own cluster only")
    cluster.load(torch_image.build(Images(cache())))


@pytest.mark.usefixtures("torch_images")
def test_a_step_tries_the_script_itself(namespace, backend):
    """profile_training, in an image that has torch, measures what the first steps take."""
    job: Object = jobs.digits(namespace, traced=False)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["command"][1] = str(jobs.SAMPLES / "digits.py")
    run = _component("profile_training", "run-1", manifest=yaml.safe_dump(job), steps=3)
    step = run.step("profile-training")
    own = Own(image=torch_image.TORCH_STEPS_IMAGE)
    tried = backend("pipeline-runner").start(step, own=own).wait(600)
    sizes = {one["name"]: one for one in json.loads(tried.files["profile"])["quantities"]}
    assert sizes["memory"]["basis"] == "profile"
    assert tried.metadata["metrics"]["memory"] == sizes["memory"]["target"] > 1 << 20


@pytest.mark.usefixtures("torch_images")
@pytest.mark.filterwarnings("ignore")  # kfp's own
@pytest.mark.parametrize("namespace", ["baseline"], indirect=True)  # images with torch run as root
def test_any_component_becomes_an_elastic_job(cluster, namespace, backend, tmp_path):
    """A step launches it; its function runs in each pod of a job, whose image has torch and neither
    kfp, nor rover-kf, nor the function."""
    path = wrapped_component.compiled(tmp_path, torch_image.TORCH_IMAGE)
    run = Run(path, "run-1", {"times": 5, "run": "run-1"})
    done = backend("pipeline-runner").start(run.step("fit")).wait(300)
    job = RunningJob(cluster, namespace, done.parameters["Output"])
    assert job.verdict() == "Succeeded"
    for pod in ("worker-0", "worker-1"):
        assert "2 ranks have 10" in job.log(f"{job.name}-{pod}")
