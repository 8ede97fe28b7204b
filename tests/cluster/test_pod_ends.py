# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ends of pods as a real Kubernetes makes them, and what they are taken for.

Every way at once. A finalizer keeps each pod's object when its pod is gone. A node is short of
memory by what its kubelet is told that it needs: the machine has enough. Not among them: a node
that shuts down, of which its kubelet hears from systemd-logind, which there is none of.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testcluster import deployment, objects, training_operator
from testcluster.jobs import RunningJob
from testcluster.journaled_job import eventually_told
from testcluster.objects import Object

from rover_kf.api import names
from rover_kf.cluster.kubernetes.conversion import parse_pod
from rover_kf.reconcilers import events
from tests.support.failure_cases import PODS
from tests.support.waiting import eventually

_KEPT = "rover-kf.test/kept"
_TAINT = "rover-kf.test/taken:NoExecute"
_SLEEP = ["sleep", "600"]
_DIE = ["sh", "-c", "kill -9 $$$$"]  # Kubernetes makes one $ of two
_FILL_DISK = ["sh", "-c", "head -c 8m /dev/zero >/scratch/file; exec sleep 600"]
_FILL_MEMORY = ["sh", "-c", r"x=$(head -c 64m /dev/zero | tr '\0' x); exec sleep 600"]


@pytest.fixture
def pod(namespace, toolbox_image) -> Callable[..., Object]:
    """A pod of a job, as far as anybody looks; it ends for one reason."""

    def make(name: str, command: list[str] = _SLEEP, **spec: Any) -> Object:
        made = objects.toolbox(name, namespace, command, image=toolbox_image)
        made["metadata"] |= {
            "finalizers": [_KEPT],
            "labels": {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "0"},
        }
        own = ("image", "imagePullPolicy", "env", "resources", "volumeMounts")
        container = {key: spec.pop(key) for key in own if key in spec}
        made["spec"]["containers"][0] |= container
        made["spec"] |= {"restartPolicy": "Never", "automountServiceAccountToken": False} | spec
        return made

    return make


@pytest.fixture
def priority(cluster, namespace) -> Iterator[None]:
    """A PriorityClass above all pods of users, named as the namespace."""
    cluster.kubectl("create", "priorityclass", namespace, "--value=1000")
    yield
    cluster.kubectl("delete", "priorityclass", namespace)


@pytest.fixture
def kept(cluster, namespace) -> Iterator[Callable[[], dict[str, Object]]]:
    """Objects of the namespace's pods by name; let go at the end."""

    def look() -> dict[str, Object]:
        items = objects.get(cluster, namespace, "pods")["items"]
        return {item["metadata"]["name"]: item for item in items}

    yield look
    free = json.dumps({"metadata": {"finalizers": None}})
    for name in look():
        cluster.kubectl("-n", namespace, "patch", "pod", name, "--type=merge", "-p", free)


def _bystander(cluster) -> str:
    """A node that has neither the controller nor the Training Operator."""
    busy = {
        item["spec"].get("nodeName")
        for place in (deployment.NAMESPACE, training_operator.NAMESPACE)
        for item in objects.get(cluster, place, "pods")["items"]
    }
    return next(node.name for node in cluster.nodes if node.name not in busy)


def _cores(amount: str) -> Object:
    return {"requests": {"cpu": amount}}


def _on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def _evict(cluster, namespace: str, name: str) -> None:
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(body))


@contextlib.contextmanager
def _taken(cluster, node: str) -> Iterator[None]:
    """The node's taint drives away whoever does not tolerate it."""
    cluster.kubectl("taint", "node", node, "rover-kf.test/taken=true:NoExecute")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{_TAINT}-")


def _pressed(cluster, node: str) -> bool:
    found = objects.get(cluster, "", "node", node)
    return any("pressure" in taint["key"] for taint in found["spec"].get("taints", ()))


_SHORT = {
    "evictionSoft": {"memory.available": "99%"},
    "evictionSoftGracePeriod": {"memory.available": "8s"},
    "localStorageCapacityIsolation": True,
    "volumeStatsAggPeriod": "1s",
}
"""Of a kubelet's settings: nearly all memory has to be free, and volumes have the limits that they
state. It looks every ten seconds, and knows at the second look how large volumes are."""


@pytest.mark.usefixtures("room", "priority")
def test_ends_are_taken_for_what_they_are(cluster, namespace, pod, kept, node_faults):
    """Each pod ended in one way, and its real object is told as that."""
    spare = _bystander(cluster)
    other = next(node.name for node in cluster.nodes if node.name != spare)
    tolerant = [{"key": "rover-kf.test/taken", "operator": "Exists"}]
    away, on_spare = _on(other), _on(spare) | {"tolerations": tolerant}
    config = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]
    memory = {"limits": {"memory": "16Mi"}}
    # A kubelet that starts anew under pressure takes no pods that ask for nothing, its own neither.
    some = {"resources": {"requests": {"memory": "1Mi"}}}
    scratch = {
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    made = [
        pod("full", _FILL_MEMORY, resources=memory, **away | {"restartPolicy": "OnFailure"}),
        pod("killed", _DIE, shareProcessNamespace=True, **away),
        pod("late", activeDeadlineSeconds=1, **away),
        pod("drained", **away),
        pod("taken", **_on(spare)),
        pod("small", resources=_cores("1500m"), **on_spare),
        pod("pressed", **some, **on_spare),
        pod("hoard", _FILL_DISK, **scratch, **some, **on_spare),
        pod("wide", resources=_cores("1000"), nodeName=other),
        pod("elsewhere", nodeName=other, **_on(spare)),
        pod("unnamed", image="Not A Name", **away),
        pod("missing", image="localhost/none:1", imagePullPolicy="Always", **away),
        pod("unset", env=config, **away),
        pod("unknown", ["/no/such/program"], **away),
    ]
    objects.apply(cluster, made)
    placed = ("drained", "taken", "small", "pressed", "hoard")
    eventually(
        lambda: all(objects.pod_ready(kept()[name]) for name in placed),
        within=60, what=f"pods {placed} ready",
    )  # fmt: skip
    _evict(cluster, namespace, "drained")
    greedy = pod("greedy", priorityClassName=namespace, resources=_cores("1500m"), **on_spare)
    objects.apply(cluster, [greedy])
    wanted = {way.name: way.kind for way in PODS}
    assert list(wanted) == [one["metadata"]["name"] for one in made]
    ever: dict[str, str] = {}

    def told() -> dict[str, str]:
        for name, item in kept().items():
            seen = events.collect_pod_events((parse_pod(item),), 0.0)
            kind = next((event.message.split(": ")[1] for _, event in seen), "")
            # That a kill was for memory the kubelet does not always hear: this pod gets another.
            if kind and (name, kind) != ("full", "process_killed"):
                ever[name] = kind
        return {name: ever.get(name, "") for name in wanted}

    with _taken(cluster, spare):
        gone = {"taken": "node_lost", "small": "preempted"}
        eventually(lambda: gone.items() <= told().items(), within=60, every=0.5, what=f"{gone}")
        with node_faults.kubelet_changed(spare, _SHORT):
            with contextlib.suppress(AssertionError):  # the next line shows more
                eventually(lambda: told() == wanted, within=60, every=0.5)
            assert told() == wanted
    eventually(lambda: not _pressed(cluster, spare), within=60, every=0.5, what="room again")
    print(f"{len(wanted)} pods ended as {sorted(set(wanted.values()))}")


def _never_starts(name: str, namespace: str, image: str, **container: Any) -> Object:
    """A job of one pod that something is amiss with."""
    cpu = container.pop("cpu", "100m")
    job = objects.pytorchjob(
        name, namespace, ["torchrun", "train.py"], workers=1, cpu=cpu, memory="64Mi"
    )
    job["metadata"] |= {
        "labels": {names.INJECT_LABEL: "true"},
        "annotations": {
            "rover-kf.io/checkpoint.arena": "1Mi",
            "rover-kf.io/scaling.window": "4s",
        },
    }
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod["containers"][0] |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **container,
    }
    return job


@pytest.mark.usefixtures("controller")
def test_a_job_that_cannot_start_says_why(cluster, namespace, toolbox_image):
    """Kubernetes tries on for ever, and tells it on the pod alone: the job's Events say it, too,
    with the kubelet's or the scheduler's words."""
    secret = {"name": "none", "key": "a"}
    made = {
        "unpulled": _never_starts("unpulled", namespace, "localhost/none:1"),
        "unset": _never_starts(
            "unset", namespace, toolbox_image,
            env=[{"name": "A", "valueFrom": {"secretKeyRef": secret}}],
        ),
        "wide": _never_starts("wide", namespace, toolbox_image, cpu="1000"),
    }  # fmt: skip
    objects.apply(cluster, made.values())
    begun = time.monotonic()
    for name, reason, *texts in (
        ("unpulled", names.EVENT_PROCESS_FAILED, "not_startable", "localhost/none:1"),
        ("unset", names.EVENT_PROCESS_FAILED, "not_startable", 'secret "none" not found'),
        ("wide", names.EVENT_POD_UNSCHEDULABLE, "no node for", "Insufficient cpu"),
    ):
        job = RunningJob(cluster, namespace, name)
        message = eventually_told(job, reason, texts[0], within=90)
        assert texts[1] in message
        assert message.startswith(f"{name}-worker-0: ")
        print(f"\n{time.monotonic() - begun:.0f} s: {message}")
