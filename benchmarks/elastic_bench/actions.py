# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is done to a job that trains, action by action."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

from testcluster.faults import NodeFaults
from testcluster.jobs import RunningJob
from testcluster.objects import Object
from testcluster.pod_processes import OnMachine

from benchmarks.elastic_bench.cluster_setup import NAMESPACE, Place, safe_node
from benchmarks.elastic_bench.outcome import World
from benchmarks.elastic_bench.waiting import TooLong, wait


class Gone(TooLong):
    """The process that was to be killed has ended already."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """A job that trains, and the world that it trains in."""

    place: Place
    job: RunningJob
    world: World
    side: str


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """One way to disturb a job.

    Args:
        workers: replicas at first.
        target: pods of the wanted world.
        act: does it; returns the pods that it did not leave alone.
        master: the job has a Master beside its workers.
    """

    workers: int
    target: int
    act: Callable[[Scene], set[str]]
    master: bool = False


def kill_process(scene: Scene) -> set[str]:
    """SIGKILL the training process of the last pod."""
    track = max(scene.world.tracks, key=lambda track: track.process.rank)
    os.kill(_on_machine(scene, track.process.pod, track.process.pid), signal.SIGKILL)
    return {track.process.pod}


def kill_container(scene: Scene) -> set[str]:
    """SIGKILL the first process of the trainer's container in the last pod."""
    victim = max(scene.world.pods)
    listed = OnMachine(scene.place.cluster).of(NAMESPACE, victim, "pytorch")
    os.kill(listed[0].pid, signal.SIGKILL)
    return {victim}


def delete_pod(scene: Scene) -> set[str]:
    """Kubectl delete of the last pod."""
    return _delete(scene, max(scene.world.pods))


def delete_first_pod(scene: Scene) -> set[str]:
    """The same of the pod that others find each other through."""
    return _delete(scene, min(scene.world.pods))


def scale(replicas: int) -> Callable[[Scene], set[str]]:
    """Kubectl patch of Worker.replicas."""

    def act(scene: Scene) -> set[str]:
        scene.place.patch(scene.job, _workers(replicas))
        return {f"{scene.job.name}-worker-{index}" for index in range(replicas, 9)}

    return act


def node_lost(scene: Scene) -> set[str]:
    """Cut the power of a node that has a worker but neither the first pod nor the controller."""
    pods = scene.job.pods()
    first = min(pods)
    spared = {safe_node(scene.place.cluster), pods[first]["spec"]["nodeName"]}
    nodes = {name: pod["spec"]["nodeName"] for name, pod in pods.items()}
    victim = next((name for name in sorted(nodes) if nodes[name] not in spared), "")
    if not victim:
        raise TooLong(f"every pod of {nodes} is where the controller or the first pod is")
    NodeFaults(scene.place.cluster).stop_node(nodes[victim])
    return {name for name, node in nodes.items() if node == nodes[victim]}


def master_style_scale(scene: Scene) -> set[str]:
    """Give a Master one Worker more: live with rover-kf, else by a stop of the whole job.

    A stock Master-style job has its world's size in every pod's environment, so its user suspends
    it, waits for the end of all pods, and resumes it with the new number.
    """
    more = _workers(2)
    if scene.side == "rover":
        scene.place.patch(scene.job, more)
        return set()
    scene.place.patch(scene.job, {"runPolicy": {"suspend": True}})
    wait(lambda: not scene.job.pods(), seconds=120, what="the end of the suspended job's pods")
    scene.place.patch(scene.job, {"runPolicy": {"suspend": False}, **more})
    return scene.world.pods


ACTIONS = {
    "kill_process": Action(3, 3, kill_process),
    "kill_container": Action(3, 3, kill_container),
    "delete_pod": Action(3, 3, delete_pod),
    "delete_first_pod": Action(3, 3, delete_first_pod),
    "scale_up": Action(2, 3, scale(3)),
    "scale_down": Action(3, 2, scale(2)),
    "node_lost": Action(3, 3, node_lost),
    "master_style_scale": Action(1, 3, master_style_scale, master=True),
}
"""Those on a job that trains; ``submit`` is measured by itself."""


@contextlib.contextmanager
def whole(place: Place) -> Iterator[None]:
    """Every node runs after the block."""
    try:
        yield
    finally:
        stopped = [node for node in place.cluster.nodes if not node.running]
        for node in stopped:
            NodeFaults(place.cluster).start_node(node.name)
        if stopped:
            place.cluster.wait_nodes()


def _workers(replicas: int) -> Object:
    return {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas}}}


def _delete(scene: Scene, pod: str) -> set[str]:
    scene.place.cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--wait=false")
    return {pod}


def _on_machine(scene: Scene, pod: str, pid: int) -> int:
    """The machine's number of a process that its container counts as ``pid``."""
    for process in OnMachine(scene.place.cluster).of(NAMESPACE, pod, "pytorch"):
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        if numbers.split()[-1] == str(pid):
            return process.pid
    raise Gone(f"{pod} has no process {pid} any more")
