# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the real Training Operator makes of a launcher's exit codes and of ``backoffLimit``.

The operator counts restarts of containers of pods that run, whatever ended them, and nothing else
(PastBackoffLimit): not processes that are forked anew in their container, nor pods that it replaces
under ExitCode, whose count begins at none.
"""

from __future__ import annotations

import time

import pytest
from testcluster import deployment, jobs, objects
from testcluster.jobs import RunningJob
from testcluster.journaled_job import eventually_told
from testcluster.objects import apply, job_conditions

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

LIMIT = 2
"""Of the jobs that have a ``backoffLimit``."""


@pytest.fixture
def submit(cluster, namespace, with_trainer):
    """A job of two that runs scripts/ending.py."""

    def run(name: str, word: str, restart_policy: str, limit: int | None = None) -> RunningJob:
        command = ["torchrun", "/tools/ending.py", word]
        job = objects.pytorchjob(name, namespace, command, elastic=(2, 2))
        job["spec"]["nprocPerNode"] = "1"
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart_policy
        if limit is not None:
            job["spec"]["runPolicy"] = {"backoffLimit": limit}
        job["metadata"] |= {
            "labels": {names.INJECT_LABEL: "true"},
            "annotations": {
                "rover-kf.io/checkpoint.every": "5",
                "rover-kf.io/checkpoint.arena": "16Mi",
                "rover-kf.io/scaling.mode": "off",
            },
        }
        apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, name)

    return run


def _why(job: RunningJob) -> str:
    """What the operator says of the job's failure."""
    conditions = job.read()["status"]["conditions"]
    (failed,) = [one for one in conditions if one["type"] == "Failed"]
    return f"{failed['reason']}: {failed['message']}"


def _restarts(job: RunningJob) -> int:
    """As the operator counts them."""
    statuses = [
        one
        for pod in job.pods().values()
        for key in ("initContainerStatuses", "containerStatuses")
        for one in pod["status"].get(key, ())
    ]
    return sum(one["restartCount"] for one in statuses)


def _trains(job: RunningJob, round_number: int) -> bool:
    status = job.status()
    trains = status.get("phase") == "training" and (status.get("sealed_step") or 0) > 0
    return trains and status["round"] >= round_number


def test_a_wrong_program_fails_the_job_at_once(submit):
    """Under ExitCode the launcher's 1 is what the operator takes for good; under OnFailure the
    controller has it end the job. No round is tried twice, and the Event has the traceback."""
    begun = time.monotonic()
    made = {policy: submit(policy.lower(), "wrong", policy) for policy in ("ExitCode", "OnFailure")}
    for policy, job in made.items():
        assert eventually(job.verdict, within=240, every=0.5, what="the end") == "Failed"
        seconds = time.monotonic() - begun
        told = eventually_told(job, names.EVENT_JOB_FAILED, "user_error", within=90)
        assert "NameError: name 'nowhere_to_be_found' is not defined" in told
        assert len(job.told(names.EVENT_JOB_FAILED)) == 1
        (formed,) = job.told(names.EVENT_WORLD_FORMED)
        assert formed.startswith("round 1: ")
        assert job.told(names.EVENT_BACK_OFF) == []
        limit = job.read()["spec"].get("runPolicy", {}).get("backoffLimit")
        assert limit == {"ExitCode": None, "OnFailure": 0}[policy]
        assert len(job.told(names.EVENT_RESTART_BUDGET_EXHAUSTED)) == (policy == "OnFailure")
        assert ("backoff limit" in _why(job)) == (policy == "OnFailure")
        print(f"\n{policy}: failed within {seconds:.0f} s of both submits; {_why(job)}")


def test_what_happened_while_no_controller_was_there_is_told(submit, controller_down, cluster):
    """The coordinator has gone with its pod when the controller is back: its container's status
    has the story, and each Event is told once."""
    job = submit("unseen", "wrong", "ExitCode")
    controller_down()
    assert eventually(job.verdict, within=240, every=0.5, what="the end") == "Failed"
    deployment.scale(cluster, 1)
    eventually(lambda: job.told(names.EVENT_RECORDED), within=120, every=0.5, what="its record")
    assert job.told(names.EVENT_PROCESS_FAILED)
    (formed,), (failed,) = job.told(names.EVENT_WORLD_FORMED), job.told(names.EVENT_JOB_FAILED)
    assert formed.startswith("round 1: ")
    assert "user_error" in failed


@pytest.mark.at_length
def test_a_limit_counts_containers_alone(submit, faults):
    """Processes that are killed more often than ``backoffLimit`` says cost a job under OnFailure
    nothing of it; as many containers end the job, by the operator's own word."""
    job = submit("limited", "100000", "OnFailure", LIMIT)
    for number in range(1, LIMIT + 3):
        eventually(lambda n=number: _trains(job, n), within=240, every=0.3, what="training")
        faults.kill(job.namespace, "limited-worker-1", container="pytorch")
    eventually(lambda: _trains(job, LIMIT + 3), within=120, every=0.3, what="training")
    assert (_restarts(job), job.verdict()) == (0, "")

    for killed in range(1, LIMIT + 1):
        first = faults.processes(job.namespace, "limited-worker-1", container="pytorch")[0]
        at, known = time.monotonic(), job.status()["round"]
        faults.reach.send(9, first)
        if killed < LIMIT:
            eventually(
                lambda n=known: _restarts(job) and _trains(job, n + 1),
                within=120, every=0.3, what="training in a container that was started again",
            )  # fmt: skip
            assert job.verdict() == ""
    assert eventually(job.verdict, within=120, every=0.3, what="the end") == "Failed"
    assert "reached the specified backoff limit" in _why(job)
    print(f"\n{_why(job)}, {time.monotonic() - at:.0f} s after the last container was killed")


@pytest.mark.at_length
def test_pods_that_are_replaced_are_not_counted(submit, faults, cluster):
    """Under ExitCode each killed container costs a pod, none of the ``backoffLimit``: the budget of
    the job is ours, and it goes on."""
    job = submit("replaced", "100000", "ExitCode", 1)
    for number in range(1, LIMIT + 2):
        eventually(lambda n=number: _trains(job, n), within=240, every=0.3, what="training")
        known = job.pods()["replaced-worker-1"]["metadata"]["uid"]
        first = faults.processes(job.namespace, "replaced-worker-1", container="pytorch")[0]
        faults.reach.send(9, first)
        eventually(
            lambda uid=known: job.pods().get("replaced-worker-1", {}).get("metadata", {}).get("uid")
            not in {None, uid},
            within=120, every=0.3, what="another pod",
        )  # fmt: skip
    eventually(lambda: _trains(job, LIMIT + 2), within=240, every=0.3, what="training")
    assert "Failed" not in job_conditions(job.read())
    assert _restarts(job) == 0
    cluster.kubectl("-n", job.namespace, "delete", "pytorchjob", job.name, "--wait=false")
