# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A step that launches a job, against an API server's stand-in over real HTTP."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import threading

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from rover_kf.pipeline_steps import cleanup, job_status, launch_options, scaling_watch
from rover_kf.pipeline_steps.launch import JobLauncher
from rover_kf.pipeline_steps.launch_options import LaunchOptions
from rover_kf.pipeline_steps.step_context import StepContext
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.status_annotation import JobStatus, LauncherState
from tests.support.faults.api_stand_in import failure, serving
from tests.support.jobs.embedded_job import client_in
from tests.support.waiting import eventually

JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PODS = "/api/v1/namespaces/team/pods"
OWNER = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "name": "run-abc",
    "uid": "uid-w",
}
STEP = StepContext("run-1", "launch-1:0", "team", OWNER)


def manifest(**metadata):
    container = {"name": "pytorch", "image": "digits:1", "command": ["python", "train.py"]}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "digits", "labels": {names.INJECT_LABEL: "true"}, **metadata},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


NAME = launch_options.make_job_name(manifest(), "run-1")
PATH = f"{JOBS}/{NAME}"


@pytest.fixture
def api():
    with serving() as stand_in:
        yield stand_in


@pytest.fixture
def rover(api, tmp_path):
    with client_in(tmp_path, KubernetesCluster(api.client())) as client:
        yield client


def launch(rover, step=STEP, terms=None, say=None):
    told = terms or LaunchOptions(timeout_seconds=60.0)
    return JobLauncher(rover, step, told, say=say or (lambda _: None), every=0.02)


def condition(api, kind):
    """The operator's word on the job."""
    with api.lock:  # a patch of the step's comes before it or after it
        put_condition(api, kind)


def put_condition(api, kind):
    job = api.objects[PATH]
    api.put(PATH, {**job, "status": {"conditions": [{"type": kind, "status": "True"}]}})


def remove(api):
    with api.lock:
        return api.objects.pop(PATH)


def annotation(api, key):
    return (api.objects[PATH]["metadata"].get("annotations") or {}).get(key, "")


def written(api, *kinds):
    """Requests that changed the job."""
    return [(method, body) for method, path, _, body, _ in api.requests
            if method in kinds and path.startswith(JOBS)]  # fmt: skip


class Later(threading.Thread):
    """Does something to the job once that is true of it."""

    def __init__(self, when, what):
        super().__init__()
        self.when, self.what, self.error = when, what, None
        self.start()

    def run(self):
        try:
            eventually(self.when, within=30)
            self.what()
        except AssertionError as error:
            self.error = error

    def done(self):
        self.join()
        assert self.error is None, self.error


def test_a_job_is_launched_and_seen_through(api, rover):
    """It is created with its owner, its run and the first renewal in one request, its name follows
    from run and manifest, and its progress is told from the annotation where no coordinator is."""
    lines = []

    def trains():
        memory = JobStatus(phase="training", nodes=1, step=120, total_steps=500, durable_step=100)
        patch = {
            "metadata": {"annotations": {names.STATUS_ANNOTATION: status_annotation.write(memory)}}
        }
        rover.cluster.patch_job(rover.list("team")[0].key, patch)
        condition(api, "Running")
        eventually(lambda: any("step 120/500" in line for line in lines), within=30)
        condition(api, "Succeeded")

    later = Later(lambda: PATH in api.objects, trains)
    done = launch(rover, say=lines.append).run(manifest(), inject=False)
    later.done()
    assert (done.key.namespace, done.key.name) == ("team", NAME)
    assert (done.last.phase, done.last.step) == ("Succeeded", 120)
    (created,) = [body for _, body in written(api, "POST")]
    metadata = created["metadata"]
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "name": "run-abc",
            "uid": "uid-w",
        }
    ]
    assert metadata["annotations"][names.LAUNCH_RENEWAL_ANNOTATION] == "launch-1:0 0"
    assert metadata["annotations"][names.LAUNCH_RUN_ANNOTATION] == "run-1"
    assert any("Running (training)" in line and "durable 100" in line for line in lines), lines


def test_events_that_may_not_be_read_or_written_end_nothing(api, rover):
    """The service account of a stand-alone Kubeflow Pipelines has no right to Events: the job is
    created with its warning logged, waited for and told of; the log says once what is lacking."""
    lines = []
    refusal = "events is forbidden: cannot list"
    api.hooks.append(
        lambda _, path: failure(403, "Forbidden", refusal) if "/events" in path else None
    )
    later = Later(lambda: PATH in api.objects, lambda: condition(api, "Succeeded"))
    done = launch(rover, say=lines.append).run(manifest(), inject=False)
    later.done()
    assert done.last.finished
    (note,) = [line for line in lines if "Events are not told" in line]
    assert refusal in note
    assert job_status.read_record(rover, done.key).outcome == "succeeded"
    key, told = (
        JobKey("team", NAME),
        {"timeout_seconds": 30.0, "start_seconds": 20.0, "every": 0.02},
    )
    assert scaling_watch.watch_scaling(rover, key, say=lines.append, **told).current_replicas == 1
    assert sum("Events are not told" in line for line in lines) == 2


def test_a_warning_that_cannot_become_an_event_is_logged(api, rover, caplog):
    """The job is there by then: who may create jobs may not always create Events."""
    api.hooks.append(lambda _, path: failure(403, "Forbidden", "no") if "/events" in path else None)
    wanting = manifest(namespace="team")
    (container,) = wanting["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][
        "containers"
    ]
    container["command"] = ["sh", "train.sh"]
    assert rover.submit(wanting).key.name == "digits"
    (record,) = caplog.records
    assert "the trainer's command stays as it is" in record.getMessage()


def test_a_step_that_is_started_again_adopts_its_job(api, rover):
    """The job of the same run is waited for, not created anew, and its lease is taken over."""
    rover.submit(
        launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions()), inject=False
    )
    uid = api.objects[PATH]["metadata"]["uid"]
    again = dataclasses.replace(STEP, holder="launch-2:0")
    held = lambda: annotation(api, names.LAUNCH_RENEWAL_ANNOTATION) == "launch-2:0 1"  # noqa: E731
    later = Later(held, lambda: condition(api, "Succeeded"))
    done = launch(rover, again).run(manifest(), inject=False)
    later.done()
    assert done.last.finished
    assert api.objects[PATH]["metadata"]["uid"] == uid


@pytest.mark.parametrize("by", ["lease", "on_stop", "person"])
def test_a_job_that_was_suspended_for_its_step_is_resumed(api, rover, by):
    """By its lease's end or by the step's own end; what a person has suspended stays so."""
    rover.submit(
        launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions()), inject=False
    )
    key = rover.list("team")[0].key
    notes = {"spec": {"runPolicy": {"suspend": True}}}
    if by == "lease":
        memory = status_annotation.write(JobStatus(launch=LauncherState(expired_at=1.0)))
        notes["metadata"] = {"annotations": {names.STATUS_ANNOTATION: memory}}
    if by == "on_stop":
        notes["metadata"] = {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: None}}
    rover.cluster.patch_job(key, notes)
    again = dataclasses.replace(STEP, holder="launch-2:0")
    held = lambda: annotation(api, names.LAUNCH_RENEWAL_ANNOTATION).startswith("launch-2")  # noqa: E731
    later = Later(held, lambda: condition(api, "Succeeded"))
    launch(rover, again).run(manifest(), inject=False)
    later.done()
    assert api.objects[PATH]["spec"]["runPolicy"]["suspend"] is (by == "person")


def test_another_runs_job_is_left_alone(api, rover):
    """A job of that name that this run has not launched is no one's to adopt."""
    foreign = launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions())
    foreign["metadata"]["annotations"][names.LAUNCH_RUN_ANNOTATION] = "run-0"
    rover.submit(foreign, inject=False)
    with pytest.raises(errors.JobExists, match="of run run-0, not of run-1: delete it, or"):
        launch(rover).run(manifest(), inject=False)
    assert not written(api, "PATCH", "DELETE")


def test_a_job_that_is_going_is_waited_for(api, rover):
    """A job of that name that is being deleted makes room for a new one."""
    rover.submit(
        launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions()), inject=False
    )
    old = api.put(PATH, {**api.objects[PATH], "metadata": {
        **api.objects[PATH]["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})  # fmt: skip

    def go():
        remove(api)
        eventually(lambda: PATH in api.objects, within=30)
        condition(api, "Succeeded")

    later = Later(lambda: len(written(api, "POST")) > 2, go)
    launch(rover).run(manifest(), inject=False)
    later.done()
    assert api.objects[PATH]["metadata"]["uid"] != old["metadata"]["uid"]


@pytest.mark.parametrize("on_stop", ["delete", "suspend", "keep"])
def test_a_step_that_is_stopped_stops_its_job(api, rover, on_stop):
    """SIGTERM ends the pause at once; the job is deleted, suspended, or let go without a lease."""
    later = Later(lambda: PATH in api.objects, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    step = JobLauncher(rover, STEP, LaunchOptions(on_stop=on_stop), say=lambda _: None, every=60.0)
    with pytest.raises(errors.JobFailed, match=r"stopped by SIGTERM: the job (is|goes)"):
        step.run(manifest(), inject=False)
    later.done()
    assert signal.getsignal(signal.SIGTERM) is before
    assert (PATH in api.objects) is (on_stop != "delete")
    if on_stop != "delete":
        policy = api.objects[PATH]["spec"].get("runPolicy") or {}
        assert bool(policy.get("suspend")) is (on_stop == "suspend")
        assert not annotation(api, names.LAUNCH_RENEWAL_ANNOTATION)


def test_a_step_whose_place_was_taken_leaves_the_job(api, rover):
    """Two attempts at a time: the one that does not hold the lease goes, and stops nothing."""
    taken = {"metadata": {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: "launch-2:0 1"}}}
    later = Later(
        lambda: PATH in api.objects,
        lambda: rover.cluster.patch_job(rover.list("team")[0].key, taken),
    )
    with pytest.raises(errors.JobFailed, match="held by another step by now: launch-2:0"):
        launch(rover).run(manifest(), inject=False)
    later.done()
    assert PATH in api.objects


def test_a_job_that_no_operator_acts_on_fails_fast(api, rover):
    """No condition in start_seconds: the job is deleted, and the error says what to look at."""
    with pytest.raises(errors.ClusterUnavailable, match=r"no operator has acted .* is the Train"):
        launch(rover, terms=LaunchOptions(start_seconds=0.1)).run(manifest(), inject=False)
    assert PATH not in api.objects


def test_a_job_that_takes_too_long_is_stopped(api, rover):
    """So is one that has not ended in timeout_seconds, as on_stop says."""

    def runs(*_):
        if PATH in api.objects and "status" not in api.objects[PATH]:
            put_condition(api, "Running")

    api.hooks.append(runs)
    with pytest.raises(errors.JobFailed, match=r"timeout_seconds.: the job is deleted"):
        launch(rover, terms=LaunchOptions(timeout_seconds=0.3)).run(manifest(), inject=False)
    assert PATH not in api.objects


def test_the_lease_is_counted_on_in_time(api, rover):
    """A fifth of the lease apart, also while the API server is away now and then."""
    chance = random.Random(3)

    def hook(*_):
        return failure(503, "", "away") if chance.random() < 0.15 else None

    api.hooks.append(hook)

    def third():
        renewal = annotation(api, names.LAUNCH_RENEWAL_ANNOTATION) if PATH in api.objects else ""
        return int(renewal.partition(" ")[2] or 0) >= 3

    later = Later(third, lambda: condition(api, "Succeeded"))
    launch(rover, terms=LaunchOptions(60.0, lease_seconds=1.0)).run(manifest(), inject=False)
    later.done()


def test_a_job_that_fails_or_goes_fails_the_step(api, rover):
    """With its verdict; a job that somebody deletes is no success either."""
    later = Later(lambda: PATH in api.objects, lambda: condition(api, "Failed"))
    with pytest.raises(errors.JobFailed, match="is Failed"):
        launch(rover).run(manifest(), inject=False)
    later.done()
    del api.objects[PATH]
    later = Later(lambda: PATH in api.objects, lambda: remove(api))
    with pytest.raises(errors.JobFailed, match="was deleted while it was waited for"):
        launch(rover).run(manifest(), inject=False)
    later.done()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"on_stop": "abort"}, "allowed: delete, suspend, keep"),
        ({"on_lease_expired": "Delete"}, "allowed: suspend, delete, keep"),
        ({"timeout_seconds": 0}, "more than 0"),
        ({"lease_seconds": -1}, "0 or more"),
    ],
)
def test_wrong_terms_are_refused(wrong, said):
    """With what is allowed."""
    with pytest.raises(errors.InputError, match=said):
        LaunchOptions(**wrong)


def test_names_follow_from_run_and_manifest():
    """Another run, another manifest: another name; each fits a pod's host name. No run: its own."""
    long = manifest(name="a" * 60)
    made = {
        launch_options.make_job_name(one, run) for one in (manifest(), long) for run in ("1", "2")
    }
    assert len(made) == 4
    assert max(map(len, made)) == launch_options.MAX_NAME_LENGTH
    assert launch_options.make_job_name(manifest(), "") == "digits"
    unnamed = manifest(name=None, generateName="fit-")
    assert re.fullmatch("fit-[0-9a-f]{8}", launch_options.make_job_name(unnamed, "1"))
    launched = launch_options.with_launch_metadata(unnamed, STEP, LaunchOptions())
    assert launched["metadata"]["name"] == launch_options.make_job_name(unnamed, "run-1")
    assert not launch_options.with_launch_metadata(unnamed, StepContext(), LaunchOptions())[
        "metadata"
    ]["name"]
    assert "launch-renewal" not in str(
        launch_options.with_launch_metadata(manifest(), StepContext(), LaunchOptions())
    )


def test_cleanup_deletes_what_its_run_has_launched(api, rover):
    """Jobs of the run that go on; one that has ended, and one of another run, stay."""
    for run in ("run-1", "run-2"):
        step = dataclasses.replace(STEP, run=run)
        rover.submit(
            launch_options.with_launch_metadata(manifest(), step, LaunchOptions()), inject=False
        )
    rover.submit(
        launch_options.with_launch_metadata(manifest(name="done"), STEP, LaunchOptions()),
        inject=False,
    )
    ended = f"{JOBS}/{launch_options.make_job_name(manifest(name='done'), 'run-1')}"
    api.put(ended, {**api.objects[ended], "status": {
        "conditions": [{"type": "Succeeded", "status": "True"}]}})  # fmt: skip
    lines = []
    deleted = cleanup.delete_run_jobs(rover, STEP, say=lines.append)
    assert [key.name for key in deleted] == [NAME]
    assert len(rover.list("team")) == 2
    assert lines[-1] == "1 jobs of run run-1 deleted"
    with pytest.raises(errors.InputError, match="PIPELINE_JOB_ID_PLACEHOLDER"):
        cleanup.delete_run_jobs(rover, StepContext())


def pod_labels(job):
    return {
        names.JOB_NAME_LABEL: job,
        names.REPLICA_TYPE_LABEL: "chief",
        names.REPLICA_INDEX_LABEL: "0",
    }


def _launched(rover, given):
    rover.submit(
        launch_options.with_launch_metadata(
            given, STEP, LaunchOptions(on_stop="keep", on_lease_expired="keep")
        ),
        inject=False,
    )
    return launch_options.make_job_name(given, STEP.run)


def test_cleanup_ends_jobs_that_run_whatever_their_terms(api, rover):
    """PyTorchJobs and TFJobs, though the API server is away for a moment; it ends with their
    pods, and one that may not be deleted keeps no other from it."""
    tfjob = manifest(name="wide")
    tfjob["kind"] = "TFJob"
    worker = tfjob["spec"].pop("pytorchReplicaSpecs")["Worker"]
    worker["template"]["spec"]["containers"][0]["name"] = "tensorflow"
    tfjob["spec"]["tfReplicaSpecs"] = {"Chief": worker}
    first, second = _launched(rover, manifest()), _launched(rover, manifest(name="held"))
    third = _launched(rover, tfjob)
    pod = {
        "metadata": {"name": "p", "namespace": "team", "labels": pod_labels(third)},
        "status": {},
    }
    api.put(f"{PODS}/p", pod)
    away = [(503, "down")] * 3
    api.hooks.append(lambda *_: away.pop() if away else None)
    api.hooks.append(lambda method, path: failure(403, "Forbidden", f"{second} is kept")
                     if method == "DELETE" and path.endswith(second) else None)  # fmt: skip
    looks = []

    def pod_ends(method, path):
        if (method, path) == ("GET", PODS):
            looks.append(path)
            if len(looks) == 4:
                api.objects.pop(f"{PODS}/p")

    api.hooks.append(pod_ends)
    lines = []
    with pytest.raises(errors.InputError, match=f"{second} is kept"):
        cleanup.delete_run_jobs(rover, STEP, say=lines.append, pause=0.01)
    assert [job.key.name for job in rover.list("team")] == [second]
    assert f"PyTorchJob team/{first} is deleted" in lines
    assert f"TFJob team/{third} is deleted" in lines
    assert sum(line.startswith("tried again") for line in lines) == 3
    assert len(looks) >= 4
    assert lines[-1] == "2 jobs of run run-1 deleted"


def test_a_run_is_told_of_without_a_history(api, rover):
    """By what stands on the job: its end, its last step; a job that is not there is no run."""
    rover.submit(
        launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions()), inject=False
    )
    memory = JobStatus(phase="finished", step=120, total_steps=120, restarts=2)
    noted = {
        "metadata": {"annotations": {names.STATUS_ANNOTATION: status_annotation.write(memory)}}
    }
    key = rover.cluster.patch_job(rover.list("team")[0].key, noted).key
    condition(api, "Succeeded")
    record = job_status.read_record(rover, key)
    assert (record.outcome, record.steps, record.restarts) == ("succeeded", 120, 2)
    assert record.signature.name == NAME
    rover.delete(key)
    with pytest.raises(errors.NoSuchJob, match="report before the job is deleted"):
        job_status.read_record(rover, key)


def test_a_jobs_size_is_followed_to_its_end(api, rover):
    """From before it is there until it has ended; one that never comes is an error."""

    def grow():
        rover.submit(
            launch_options.with_launch_metadata(manifest(), STEP, LaunchOptions()), inject=False
        )
        key = rover.list("team")[0].key
        seen = len(api.requests)
        eventually(lambda: len(api.requests) > seen + 5, within=30)
        sizes = {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}
        rover.cluster.patch_job(key, {"spec": sizes})
        condition(api, "Succeeded")

    later = Later(lambda: any(path == PATH for _, path, *_ in api.requests), grow)
    key = JobKey("team", NAME)
    told = {"timeout_seconds": 30.0, "start_seconds": 20.0, "every": 0.02, "say": lambda _: None}
    story = scaling_watch.watch_scaling(rover, key, **told)
    later.done()
    assert (story.min_replicas, story.max_replicas, story.current_replicas) == (1, 3, 3)
    with pytest.raises(errors.NoSuchJob, match="start_seconds"):
        scaling_watch.watch_scaling(rover, JobKey("team", "no"), **{**told, "start_seconds": 0.1})
