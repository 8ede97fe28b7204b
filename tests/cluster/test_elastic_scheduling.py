# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that trains with what the cluster has: it starts with fewer, gives way, and grows back."""

from __future__ import annotations

import json
import time
import uuid

import pytest
from testcluster import jobs, journaled_job, objects
from testcluster.jobs import RunningJob
from testcluster.journaled_job import answer, eventually_told, newest, resumed, trains_with
from testcluster.objects import apply

from rover_kf.cluster.kubernetes.conversion import parse_time
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller", "room")]

MORE_THAN_HALF = "1100m"
"""Of a node's two cores: no node takes two of them, nor one beside a guest."""
GUEST = "1000m"


class Guests:
    """Pods of higher priority that come to a node of one's choice."""

    def __init__(self, cluster, namespace: str, image: str) -> None:
        self.cluster, self.namespace, self.image = cluster, namespace, image
        self.priority = f"guests-{uuid.uuid4().hex[:6]}"

    def come(self, node: str) -> str:
        """Take the place of what is there."""
        name = f"guest-{uuid.uuid4().hex[:6]}"
        pod = objects.toolbox(name, self.namespace, ["sleep", "600"], image=self.image)
        pod["spec"] |= {
            "priorityClassName": self.priority,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
        }
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": GUEST}}
        apply(self.cluster, [pod])
        return name

    def placed(self, name: str) -> bool:
        """Whether the guest has its node."""
        return "nodeName" in objects.get(self.cluster, self.namespace, "pod", name)["spec"]

    def go(self, name: str) -> None:
        """Make room again."""
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", name, "--now", "--wait=false")


@pytest.fixture
def guests(cluster, make_namespace, toolbox_image):
    found = Guests(cluster, make_namespace("restricted"), toolbox_image)
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    kind["metadata"] = {"name": found.priority}
    cluster.kubectl("create", "-f", "-", text=json.dumps(kind))
    yield found
    cluster.kubectl("delete", "priorityclass", found.priority)


@pytest.fixture
def submit(cluster, namespace, with_trainer):
    """Three workers, one a node, of which the fewest may train alone."""

    def run(fewest: int) -> RunningJob:
        job = journaled_job.made(namespace, "--samples-per-second", "320", fewest=fewest)
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["resources"]["requests"]["cpu"] = MORE_THAN_HALF
        apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, job["metadata"]["name"])

    return run


def started(job: RunningJob, pod: str) -> float:
    """When the container of a pod's trainer was started, by the journal's clock."""

    def running() -> dict:
        containers = job.pods()[pod]["status"].get("containerStatuses", ())
        states = (item["state"] for item in containers if item["name"] == "pytorch")
        return next(states, {}).get("running", {})

    # It trains before its kubelet has told so.
    state = eventually(running, within=60, every=0.3, what=f"{pod} runs, as its kubelet says")
    return time.monotonic() - (time.time() - parse_time(state["startedAt"]))


def test_a_job_takes_the_room_there_is(checkpoints, submit, guests):
    """With room for two of three it trains with two as soon as these are ready; it grows when there
    is room, gives way to a pod of higher priority, and grows back. State comes from memory each
    time, no sealed step is made again, and Events say why."""
    guest = guests.come("rk3")
    eventually(lambda: guests.placed(guest), within=30, what="the guest's place")
    job = submit(1)
    begun = trains_with(checkpoints, 2)
    (waits,) = (name for name, pod in job.pods().items() if "nodeName" not in pod["spec"])
    ready = max(started(job, name) for name in job.pods() if name != waits)
    eventually_told(job, "PodSkipped", f"{waits}: no node for it: 0/3 nodes are")
    assert job.pods()[waits]["status"]["phase"] == "Pending"
    assert answer(job)["nodes"] == 2

    at, step = newest(checkpoints)
    guests.go(guest)
    grown = trains_with(checkpoints, 3) - at
    assert {line.source for line in resumed(checkpoints, at)} <= {"memory", "peer"}
    assert all(line.step >= step for line in resumed(checkpoints, at))

    sealed = answer(job)["sealed_step"]
    at, _ = newest(checkpoints)
    victim = job.pods()["digits-worker-2"]["spec"]["nodeName"]
    guest = guests.come(victim)
    shrunk = trains_with(checkpoints, 2, after=at)
    assert all(line.step >= sealed for line in resumed(checkpoints, at))
    assert {line.source for line in resumed(checkpoints, at)} == {"memory"}
    eventually_told(job, "PodLost", "digits-worker-2: preempted")

    at_again, step = newest(checkpoints)
    guests.go(guest)
    back = trains_with(checkpoints, 3, after=at_again)
    assert all(line.step >= step for line in resumed(checkpoints, at_again))
    assert answer(job)["restarts"] == 0
    print(
        f"\ntwo train {begun - ready:.1f} s after their start; seconds to three {grown:.1f}, "
        f"to two {shrunk - at:.1f}, back to three {back - at_again:.1f}"
    )


@pytest.mark.at_length
def test_the_first_pod_is_preempted(checkpoints, submit, guests):
    """The pod with the coordinator loses its place: the last one gives it its own. Two train; when
    that is below the fewest for the policy's time the job is suspended, with the reason, and once
    there is room a person resumes it: it goes on from the step that its pods ended with."""
    job = submit(1)
    trains_with(checkpoints, 3)
    sealed = eventually(lambda: job.status().get("sealed_step"), within=60, what="a sealed step")
    at, _ = newest(checkpoints)
    guest = guests.come(job.pods()["digits-worker-0"]["spec"]["nodeName"])
    seconds = trains_with(checkpoints, 2, after=at) - at
    assert all(line.step >= sealed for line in resumed(checkpoints, at))
    eventually_told(job, "CoordinatorPodPrioritized", "digits-worker-2 gives its place to")
    print(f"\ntwo train {seconds:.1f} s after the guest came")

    back = ("phase", "nodes")
    eventually(
        lambda: [job.status().get(key) for key in back] == ["training", 2],
        within=60, every=0.3, what="the first pod trains again",
    )  # fmt: skip
    _annotate(job, "failures.suspend-after=2s", "scaling.min=3")
    message = eventually_told(job, "JobSuspended", "2 of at least 3 pods could train for")
    eventually(lambda: not job.pods(), within=60, every=0.3, what="its pods' end")
    _, step = newest(checkpoints)
    assert job.read()["spec"]["runPolicy"]["suspend"] is True
    assert _remembered(job) == message[:240]
    guests.go(guest)
    # The room is free once the guest has ended: two seconds would be over before.
    _annotate(job, "failures.suspend-after=2m")
    resume = json.dumps({"spec": {"runPolicy": {"suspend": False}}})
    patch = ("patch", "pytorchjob", job.name, "--type=merge", "-p", resume)
    job.cluster.kubectl("-n", job.namespace, *patch)
    at = time.monotonic()
    seconds = trains_with(checkpoints, 3, after=at) - at
    found = resumed(checkpoints, at)
    assert {line.source for line in found} == {"storage"}
    assert all(line.step >= step for line in found), "what was in memory was made durable"
    eventually(lambda: not _remembered(job), within=30, every=0.3, what="nothing of it left")
    print(f"{message}\nresumed, three train {seconds:.1f} s later from step {found[0].step}")


def _annotate(job: RunningJob, *given: str) -> None:
    policy = [f"rover-kf.io/{one}" for one in given]
    annotate = ("annotate", "--overwrite", "pytorchjob", job.name, *policy)
    job.cluster.kubectl("-n", job.namespace, *annotate)


def _remembered(job: RunningJob) -> str:
    annotations = job.read()["metadata"]["annotations"]
    return json.loads(annotations["rover-kf.io/status"])["suspended"]
