# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to break one thing: contexts, which heal it when they end."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from testcluster import deployment
from testcluster.processes import Daemon

from chaos.scene import SIDECAR, TRAINER, Scene
from rover_kf.api import names

Fault = Callable[[Scene], AbstractContextManager[None]]

_BLOCK = bytes(1 << 20)
_RATHER_FULL_MILLICORES = 150
"""Less than what a worker asks for: only by evicting one does the other pod fit."""


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


@contextlib.contextmanager
def no_controller(scene: Scene) -> Iterator[None]:
    """The controller is away."""
    deployment.scale(scene.cluster, 0)
    try:
        yield
    finally:
        deployment.scale(scene.cluster, 1)


def full_memory(role: str) -> Fault:
    """The volume that a pod's arena is in has no byte left."""

    @contextlib.contextmanager
    def full(scene: Scene) -> Iterator[None]:
        process = scene.trainer(role)
        place = pathlib.Path(f"/proc/{process.pid}/root{names.HOME}") / "filled"
        try:
            with contextlib.suppress(OSError), place.open("wb", buffering=0) as file:
                while True:
                    file.write(_BLOCK)
            yield
        finally:
            # The process may be gone by now, its pod and volume not.
            for root in (place, _seen_by(scene, role) / "filled"):
                root.unlink(missing_ok=True)

    return full


@contextlib.contextmanager
def storage_refuses(scene: Scene) -> Iterator[None]:
    """Nothing can be written where checkpoints go; what the test itself keeps there can."""
    closed = [path for path in scene.storage.iterdir() if path.is_dir() and path.name != "journal"]
    folders = [scene.storage, *(path for top in closed for path in (top, *top.rglob("*")))]
    modes = {path: path.stat().st_mode for path in folders if path.is_dir()}
    for path in modes:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def preempt(role: str) -> Fault:
    """A pod of a higher PriorityClass takes the place of a worker on its node."""

    @contextlib.contextmanager
    def preempted(scene: Scene) -> Iterator[None]:
        name = f"chaos-{uuid.uuid4().hex[:6]}"
        priority = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 1000,
        }
        kubectl = scene.cluster.kubectl
        kubectl("create", "-f", "-", text=json.dumps(priority))
        try:
            kubectl("create", "-f", "-", text=json.dumps(_greedy(scene, role, name)))
            yield
        finally:
            kubectl("-n", scene.outside, "delete", "pod", name, "--ignore-not-found", "--now")
            kubectl("delete", "priorityclass", name)

    return preempted


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


def _seen_by(scene: Scene, role: str) -> pathlib.Path:
    return pathlib.Path(f"/proc/{scene.first_of(role, SIDECAR).pid}/root{names.HOME}")


def _greedy(scene: Scene, role: str, priority: str) -> dict[str, object]:
    node = scene.node_of(role)
    millicores = _free(scene, node) + _RATHER_FULL_MILLICORES
    container = {
        "name": "greedy",
        "image": scene.toolbox,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": f"{millicores}m"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": priority, "namespace": scene.outside},
        "spec": {
            "priorityClassName": priority,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def _free(scene: Scene, node: str) -> int:
    """Millicores of a node that nobody has asked for."""
    found = json.loads(scene.cluster.get_raw(f"/api/v1/nodes/{node}"))
    path = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
    pods = json.loads(scene.cluster.get_raw(path))["items"]
    asked = sum(_requests(pod["spec"]) for pod in pods)
    return _millicores(found["status"]["allocatable"]["cpu"]) - asked


def _requests(spec: dict[str, object]) -> int:
    # A native sidecar counts as a container does.
    running = [c for c in spec.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    both = [*spec["containers"], *running]
    return sum(
        _millicores(c.get("resources", {}).get("requests", {}).get("cpu", "0")) for c in both
    )


def _millicores(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000
