# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster's objects, read as room for more pods of a job."""

from __future__ import annotations

import pytest

from rover_kf.api.cluster_capacity import Autoscaler, NamespaceObjects
from rover_kf.reconcilers import capacity


def a_node(name="n", *, ready="True", **spec):
    condition = {"type": "Ready", "status": ready}
    has = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [condition], "allocatable": has}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def a_pod(node, *containers, init=()):
    return {"spec": {"nodeName": node, "containers": list(containers), "initContainers": init}}


def container(cpu, **more):
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_what_pods_ask_for_is_no_longer_free():
    """Requests of all pods of a node are taken from what it has; other nodes' are not."""
    pods = (
        a_pod("n", container("500m"), container("1")),
        a_pod("m", container("2")),
        a_pod("", container("1")),
    )
    (room,) = capacity.node_capacities((a_node(),), pods)
    assert (room.free["cpu"], room.free["pods"]) == (2.5, 9.0)


@pytest.mark.parametrize("node", [a_node(ready="Unknown"), a_node(unschedulable=True)])
def test_nodes_that_take_no_pods_have_no_room(node):
    """Silent and cordoned ones."""
    assert capacity.node_capacities((node,), ()) == ()


@pytest.mark.parametrize(
    ("containers", "init", "cpu"),
    [
        ([container("1")], [], 1.0),
        ([container("1")], [container("3")], 3.0),
        ([container("1")], [container("500m", restartPolicy="Always")], 1.5),
        ([container("1")], [container("1", restartPolicy="Always"), container("2")], 3.0),
        ([{"resources": {"limits": {"cpu": "2"}}}], [], 2.0),
        ([{}], [], 0.0),
    ],
)
def test_a_pod_asks_as_the_scheduler_reckons(containers, init, cpu):
    """Containers together, native sidecars with them, other init containers one at a time before
    them; a limit stands for a request that is not stated."""
    asked = capacity.pod_requests({"containers": containers, "initContainers": init})
    assert asked.get("cpu", 0.0) == cpu


def test_quotas_leave_what_is_not_used():
    """Of those that count training pods: not of those for best effort or with other scopes."""

    def quota(name, **spec):
        status = {"hard": {"requests.cpu": "4"}, "used": {"requests.cpu": "1500m"}}
        return {"metadata": {"name": name}, "spec": spec, "status": status}

    given = (
        quota("team"),
        quota("short", scopes=["Terminating"]),
        quota("long", scopes=["NotTerminating"]),
        quota("first", scopeSelector={"matchExpressions": []}),
    )
    found = capacity.read_capacity(NamespaceObjects(quotas=given), None).quotas
    assert [(room.name, room.remaining) for room in found] == [
        ("team", {"requests.cpu": 2.5}),
        ("long", {"requests.cpu": 2.5}),
    ]


def test_autoscalers_name_what_they_scale():
    """An HPA's target, whoever made it."""
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "digits"}
    item = {"metadata": {"name": "keda-hpa-digits"}, "spec": {"scaleTargetRef": target}}
    found = capacity.read_capacity(NamespaceObjects(autoscalers=(item,)), None)
    assert found.autoscalers == (Autoscaler("keda-hpa-digits", "PyTorchJob", "digits"),)
    assert found.nodes is None
