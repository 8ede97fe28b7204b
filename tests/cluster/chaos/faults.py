# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to break one thing: contexts, which heal it when they end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from testcluster import cgroups, clocks, deployment, objects, training_operator
from testcluster.processes import Daemon

from chaos.scene import FIRST, SECOND, SIDECAR, TRAINER, Scene

Fault = Callable[[Scene], AbstractContextManager[None]]


def kill_trainer(role: str) -> Fault:
    """SIGKILL to a training process."""
    return _at_once(lambda scene: _send(scene, signal.SIGKILL, role, ""))


def kill_launcher(role: str) -> Fault:
    """SIGKILL to the first process of the user's container."""
    return _at_once(lambda scene: _send(scene, signal.SIGKILL, role, TRAINER))


def kill_sidecar(role: str) -> Fault:
    """SIGKILL to a sidecar; the first pod's is the coordinator."""
    return _at_once(lambda scene: _send(scene, signal.SIGKILL, role, SIDECAR))


def delete_pod(role: str) -> Fault:
    """As ``kubectl delete pod`` does it."""
    return _at_once(lambda scene: _kubectl_delete(scene, scene.pod(role)))


def delete_pod_at_once(role: str) -> Fault:
    """Its processes get no time to leave."""

    def strike(scene: Scene) -> None:
        scene.processes.reach.send(signal.SIGSTOP, scene.trainer(role))
        _kubectl_delete(scene, scene.pod(role), "--grace-period=0", "--force")

    return _at_once(strike)


def stop_trainer(role: str) -> Fault:
    """SIGSTOP, until the context ends."""

    @contextlib.contextmanager
    def stopped(scene: Scene) -> Iterator[None]:
        process = scene.trainer(role)
        scene.processes.reach.send(signal.SIGSTOP, process)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                scene.processes.reach.send(signal.SIGCONT, process)

    return stopped


def partition(role: str) -> Fault:
    """The pod's node is cut off from everything."""
    return lambda scene: scene.nodes.partitioned(scene.node_of(role))


def loss(role: str, probability: float) -> Fault:
    """The pod's node loses packets."""
    return lambda scene: scene.nodes.lossy(scene.node_of(role), probability)


def silent(daemon: str) -> Fault:
    """A daemon of the control plane answers nothing: ``apiserver``, ``coredns``."""

    @contextlib.contextmanager
    def stopped(scene: Scene) -> Iterator[None]:
        found = scene.cluster.registry.get(daemon)
        assert isinstance(found, Daemon)
        found.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            found.signal(signal.SIGCONT)
            scene.cluster.wait_nodes()

    return stopped


def clock_ahead(role: str, seconds: int) -> Fault:
    """The wall clock of all pods of that pod's node is ahead; fewer than no seconds: behind."""

    @contextlib.contextmanager
    def jumped(scene: Scene) -> Iterator[None]:
        node = scene.node_of(role)
        with clocks.ahead(lambda: cgroups.processes(node), seconds):
            yield

    return jumped


def power_loss(scene: Scene) -> AbstractContextManager[None]:
    """The node of a worker has no power: where it can be, one on which nothing else is needed; else
    rather the controller's, whose pod is made elsewhere within seconds, than the operator's."""

    def needed(role: str) -> tuple[bool, bool]:
        node = scene.node_of(role)
        return node in nodes_of(training_operator.NAMESPACE), node in nodes_of(scene.controller)

    def nodes_of(namespace: str) -> set[str]:
        pods = objects.get(scene.cluster, namespace, "pods")["items"]
        return {pod["spec"]["nodeName"] for pod in pods}

    return scene.nodes.node_stopped(scene.node_of(min((SECOND, FIRST), key=needed)))


def kill_controller(scene: Scene) -> AbstractContextManager[None]:
    """SIGKILL to the controller."""

    def strike(scene: Scene) -> None:
        for pod in objects.get(scene.cluster, scene.controller, "pods")["items"]:
            found = scene.processes.processes(scene.controller, pod["metadata"]["name"])
            for process in found:
                if not process.command.endswith("/pause"):
                    scene.processes.reach.send(signal.SIGKILL, process)

    return _at_once(strike)(scene)


@contextlib.contextmanager
def no_controller(scene: Scene) -> Iterator[None]:
    """The controller is away."""
    deployment.scale(scene.cluster, 0)
    try:
        yield
    finally:
        deployment.scale(scene.cluster, 1)


@contextlib.contextmanager
def no_node(scene: Scene) -> Iterator[None]:
    """No node takes pods; what runs goes on."""
    nodes = [node.name for node in scene.cluster.nodes]
    scene.cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        scene.cluster.kubectl("uncordon", *nodes)


def both(first: Fault, second: Fault) -> Fault:
    """The second while the first lasts."""

    @contextlib.contextmanager
    def struck(scene: Scene) -> Iterator[None]:
        with first(scene), second(scene):
            yield

    return struck


def kill_trainer_during(other: Fault, role: str) -> Fault:
    """SIGKILL to a training process that was looked for before the other fault began: that one may
    be of who knows where it is."""

    @contextlib.contextmanager
    def struck(scene: Scene) -> Iterator[None]:
        process = scene.trainer(role)
        with other(scene):
            scene.processes.reach.send(signal.SIGKILL, process)
            yield

    return struck


def _at_once(strike: Callable[[Scene], None]) -> Fault:
    @contextlib.contextmanager
    def struck(scene: Scene) -> Iterator[None]:
        strike(scene)
        yield

    return struck


def _send(scene: Scene, number: signal.Signals, role: str, container: str) -> None:
    process = scene.first_of(role, container) if container else scene.trainer(role)
    scene.processes.reach.send(number, process)


def _kubectl_delete(scene: Scene, pod: str, *how: str) -> None:
    scene.cluster.kubectl("-n", scene.job.namespace, "delete", "pod", pod, "--wait=false", *how)
