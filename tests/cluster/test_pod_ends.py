# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ends of pods as a real Kubernetes makes them, and what they are taken for.

Every way at once. A finalizer keeps each pod's object when its pod is gone. Not among them: a node
that shuts down (its kubelet hears of that from systemd, which there is none of) and one that is
short of memory or disk (it would be this machine's).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testcluster import deployment, objects, training_operator
from testcluster.objects import Object
from tests_support import eventually

from rover_kf.api import names
from rover_kf.cluster.kubernetes_objects import pod_of
from rover_kf.reconcilers import failures

_KEPT = "rover-kf.test/kept"
_TAINT = "rover-kf.test/taken:NoExecute"
_SLEEP = ["sleep", "600"]
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
        own = ("image", "imagePullPolicy", "env", "resources")
        container = {key: spec.pop(key) for key in own if key in spec}
        made["spec"]["containers"][0] |= container
        made["spec"] |= {"restartPolicy": "Never", "automountServiceAccountToken": False} | spec
        return made

    return make


@pytest.fixture
def priority(cluster, namespace) -> Iterator[str]:
    """A PriorityClass above all pods of users."""
    cluster.kubectl("create", "priorityclass", namespace, "--value=1000")
    yield namespace
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


@pytest.mark.usefixtures("node_faults")
def test_ends_are_taken_for_what_they_are(cluster, namespace, pod, priority, kept):
    """Each pod ended in one way, and its real object is told as that."""
    spare = _bystander(cluster)
    other = next(node.name for node in cluster.nodes if node.name != spare)
    tolerant = [{"key": "rover-kf.test/taken", "operator": "Exists"}]
    away, on_spare = _on(other), _on(spare) | {"tolerations": tolerant}
    config = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]
    memory = {"limits": {"memory": "16Mi"}}
    made = {
        "out_of_memory": pod("full", _FILL_MEMORY, resources=memory, **away),
        "deadline_exceeded": pod("late", activeDeadlineSeconds=1, **away),
        "drained": pod("drained", **away),
        "node_lost": pod("taken", **_on(spare)),
        "preempted": pod("small", resources=_cores("1500m"), **on_spare),
    }
    refused = [
        pod("wide", resources=_cores("1000"), nodeName=other),
        pod("elsewhere", nodeName=other, **_on(spare)),
    ]
    never = [
        pod("unnamed", image="Not A Name", **away),
        pod("missing", image="localhost/none:1", imagePullPolicy="Always", **away),
        pod("unset", env=config, **away),
        pod("unknown", ["/no/such/program"], **away),
    ]
    objects.apply(cluster, [*made.values(), *refused, *never])
    placed = ("drained", "taken", "small")
    eventually(
        lambda: all(objects.pod_ready(kept()[name]) for name in placed),
        within=60, what=f"pods {placed} ready",
    )  # fmt: skip
    _evict(cluster, namespace, "drained")
    greedy = pod("greedy", priorityClassName=priority, resources=_cores("1500m"), **on_spare)
    objects.apply(cluster, [greedy])
    wanted = {made["metadata"]["name"]: kind for kind, made in made.items()}
    wanted |= {one["metadata"]["name"]: "not_admitted" for one in refused}
    wanted |= {one["metadata"]["name"]: "not_startable" for one in never}

    def told() -> dict[str, str]:
        events = {
            name: next((event.message for _, event in failures.seen((pod_of(item),), 0.0)), "")
            for name, item in kept().items()
        }
        return {name: events[name].partition(": ")[2].partition(": ")[0] for name in wanted}

    with _taken(cluster, spare):
        with contextlib.suppress(AssertionError):  # the next line shows more
            eventually(lambda: told() == wanted, within=60, every=0.5)
        assert told() == wanted
    print(f"{len(wanted)} pods ended as {sorted(set(wanted.values()))}")
