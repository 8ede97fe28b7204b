# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of the API server, and read of its answers, to give running pods more memory."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from tests.support.faults.api_stand_in import failure, serving

KEY = JobKey("team", "digits")
POD = "/api/v1/namespaces/team/pods/digits-worker-0"
MEMORY = {"limits": {"memory": "768Mi"}, "requests": {"memory": "768Mi"}}


@pytest.fixture
def server():
    with serving() as found:
        yield found


@pytest.fixture
def cluster(server):
    return KubernetesCluster(server.client())


@pytest.fixture
def pod(cluster, server):
    """A pod of which the trainer was killed, and whose node puts a resize off."""
    labels = {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "0"}
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "1970-01-01T00:00:30Z"}
    late = {"type": "PodResizePending", "status": "True", "reason": "Deferred",
            "lastTransitionTime": "1970-01-01T00:01:00Z"}  # fmt: skip
    status = {
        "phase": "Running",
        "conditions": [late],
        "containerStatuses": [
            {
                "name": "pytorch",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": ended},
            }
        ],
    }
    spec = {"containers": [{"name": "pytorch", "resources": {"limits": {"memory": "512Mi"}}}]}
    metadata = {"name": "digits-worker-0", "namespace": "team", "labels": labels}
    server.put(POD, {"metadata": metadata, "spec": spec, "status": status})
    (found,) = cluster.list_pods(KEY)
    return found


def test_what_a_pod_shows(pod):
    """Its limit, when and by what its container ended though it waits since, and the resize."""
    (trainer,) = pod.containers
    assert (trainer.reason, trainer.termination_reason) == ("CrashLoopBackOff", "OOMKilled")
    assert (trainer.ended_at, trainer.memory_limit) == (30.0, "512Mi")
    assert (pod.resize, pod.resize_since) == ("Deferred", 60.0)


def test_a_resize_is_a_patch_of_that_very_pod(cluster, server, pod):
    """Of the subresource, with the uid as a condition, by the container's name."""
    server.put(f"{POD}/resize", {"metadata": {"name": pod.name}})
    cluster.resize_pod(KEY, pod, "pytorch", MEMORY)
    method, path, _, body, headers = server.requests[-1]
    assert (method, path) == ("PATCH", f"{POD}/resize")
    assert body["metadata"] == {"uid": pod.uid}
    assert body["spec"]["containers"] == [{"name": "pytorch", "resources": MEMORY}]
    assert headers["content-type"] == "application/strategic-merge-patch+json"


def test_a_quota_refuses_a_resize(cluster, server, pod):
    """With the API server's own words."""
    server.hooks.append(lambda *_: failure(403, "Forbidden", "exceeded quota: team"))
    with pytest.raises(errors.InputError, match="exceeded quota"):
        cluster.resize_pod(KEY, pod, "pytorch", MEMORY)


@pytest.mark.parametrize("has", [True, False])
def test_whether_pods_can_be_resized_is_what_the_server_says(cluster, server, has):
    """Its list of resources has the subresource from 1.33 on."""
    listed = [{"name": "pods"}, *([{"name": "pods/resize"}] if has else [])]
    server.hooks.append(lambda *_: (200, {"kind": "APIResourceList", "resources": listed}))
    assert cluster.supports_pod_resize() is has
    assert server.requests[-1][:2] == ("GET", "/api/v1")


def test_nodes_say_what_they_have_for_pods(cluster, server):
    """Each amount once; a node that takes no pods does not count."""
    for name, memory, cordoned in (("a", "8Gi", 0), ("b", "8Gi", 0), ("c", "99Gi", 1)):
        node = {"status": {"allocatable": {"memory": memory}}}
        node["spec"] = {"unschedulable": True} if cordoned else {}
        server.put(f"/api/v1/nodes/{name}", node)
    assert cluster.node_sizes("memory") == ("8Gi",)
