# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that trains with what the cluster has: it starts with fewer, gives way, and grows back."""

from __future__ import annotations

import json
import time
import uuid

import pytest
from chaos import journal
from testcluster import jobs, objects
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

from rover_kf.cluster.kubernetes_objects import seconds_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

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
        job = jobs.digits(
            namespace, "--steps", "100000", "--samples-per-second", "320", traced=False
        )
        job["metadata"]["annotations"] |= {"rover-kf.io/scaling.mode": "off"}
        job["spec"]["elasticPolicy"] = {"minReplicas": fewest, "maxReplicas": 3}
        worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
        worker["replicas"] = 3
        container = worker["template"]["spec"]["containers"][0]
        container["resources"]["requests"]["cpu"] = MORE_THAN_HALF
        program, *given = container["command"]
        container["command"] = [program, "/tools/journaled.py", *given]
        apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, job["metadata"]["name"])

    return run


def trains_with(folder, size: int, *, after: float = 0.0) -> float:
    """When every rank of a world of that size first ended a step; waits for it."""

    def first() -> float:
        lines = [
            line
            for line in journal.read(folder / "journal")
            if line.world == size and line.at > after and line.verb == "stepped"
        ]
        by_rank = {rank: [line.at for line in lines if line.rank == rank] for rank in range(size)}
        return max(min(times) for times in by_rank.values()) if all(by_rank.values()) else 0.0

    return eventually(first, within=150, every=0.1, what=f"steps of {size} ranks")


def told(job: RunningJob, reason: str) -> list[str]:
    """Messages of the Events of that reason."""
    return [event["message"] for event in job.events() if event["reason"] == reason]


def eventually_told(job: RunningJob, reason: str, text: str) -> None:
    eventually(
        lambda: any(text in message for message in told(job, reason)),
        within=60, every=0.3, what=f"an Event {reason} with {text!r}",
    )  # fmt: skip


def newest(folder) -> tuple[float, int]:
    """Time and step of the last line."""
    steps = [line for line in journal.read(folder / "journal") if line.verb == "stepped"]
    return steps[-1].at, max(line.step for line in steps)


def started(job: RunningJob, pod: str) -> float:
    """When the container of a pod's trainer was started, by the journal's clock."""
    containers = job.pods()[pod]["status"]["containerStatuses"]
    state = next(item["state"] for item in containers if item["name"] == "pytorch")
    return time.monotonic() - (time.time() - seconds_of(state["running"]["startedAt"]))


def resumed(folder, after: float) -> list[journal.Line]:
    lines = journal.read(folder / "journal")
    return [line for line in lines if line.verb == "restored" and line.at > after]


def test_a_job_takes_the_room_there_is(checkpoints, submit, guests):
    """With room for two of three it trains with two as soon as these are ready; it grows when there
    is room, gives way to a pod of higher priority, and grows back. State comes from memory each
    time, no sealed step is made again, and Events say why."""
    guest = guests.come("rk3")
    eventually(lambda: guests.placed(guest), within=30, what="the guest's place")
    job = submit(1)
    begun = trains_with(checkpoints, 2)
    ready = max(started(job, f"digits-worker-{index}") for index in range(2))
    eventually_told(job, "PodNotAwaited", "digits-worker-2: no node for it: 0/3 nodes are")
    pending = job.pods()["digits-worker-2"]["status"]["phase"]
    assert pending == "Pending"
    assert job.status()["nodes"] == 2

    at, step = newest(checkpoints)
    guests.go(guest)
    grown = trains_with(checkpoints, 3) - at
    assert {line.source for line in resumed(checkpoints, at)} <= {"memory", "peer"}
    assert all(line.step >= step for line in resumed(checkpoints, at))

    sealed = job.status()["sealed_step"]
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
    assert job.status()["restarts"] == 0
    print(
        f"\ntwo train {begun - ready:.1f} s after their start; seconds to three {grown:.1f}, "
        f"to two {shrunk - at:.1f}, back to three {back - at_again:.1f}"
    )


def test_the_first_pod_is_preempted(checkpoints, submit, guests):
    """The pod with the coordinator loses its place: the last one gives it its own."""
    job = submit(1)
    trains_with(checkpoints, 3)
    sealed = eventually(lambda: job.status().get("sealed_step"), within=60, what="a sealed step")
    at, _ = newest(checkpoints)
    guests.come(job.pods()["digits-worker-0"]["spec"]["nodeName"])
    seconds = trains_with(checkpoints, 2, after=at) - at
    assert all(line.step >= sealed for line in resumed(checkpoints, at))
    eventually_told(job, "FirstPodMadeRoomFor", "digits-worker-2 gives its place to")
    print(f"\ntwo train {seconds:.1f} s after the guest came")
