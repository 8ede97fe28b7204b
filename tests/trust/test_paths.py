# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A name that a tenant states leads the controller to no object of another tenant."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator

import kubernetes.client
import pytest

from rover_kf import errors
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.api.samples import Goodput
from rover_kf.api.status import CoordinatorStatus, FaultyNode
from rover_kf.cluster.kubernetes import conversion
from rover_kf.cluster.kubernetes.api import KubernetesApi, resource_path
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from rover_kf.cluster.kubernetes.transport import ApiProxyTransport
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import Cordon, Observed, ReconcilePlan
from rover_kf.reconcilers.policies import node_exclusion
from rover_kf.reconcilers.status_annotation import JobStatus
from tests.support.jobs.job_manifests import make_job

KEY = JobKey("team-a", "evil")
FOREIGN = "../../../apis/kubeflow.org/v1/namespaces/team-b/pytorchjobs/llm"
NAMES = [
    FOREIGN,
    "n1/status",
    "n1?fieldManager=x",
    "n1#x",
    "%2e%2e/%2e%2e",
    "n1;x",
    "n 1",
    "a" * 9000,
]


class Cluster(KubernetesCluster):
    """A cluster whose client a test can use."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        super().__init__(client)
        self.api = client


@pytest.fixture
def requested() -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster behind a real HTTP server, and the paths that are requested of it."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps({"kind": "Status", "message": "no such object"}).encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PATCH(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    configuration = kubernetes.client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_port}"
    yield Cluster(kubernetes.client.ApiClient(configuration)), paths
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stays_one_segment_of_the_path(requested, name):
    """bcea6b1's controller patched another namespace's job for a node of such a name."""
    cluster, paths = requested
    pod = Pod(name, "u", "worker", 0, "Running", "127.0.0.1", node=name)
    proxy = ApiProxyTransport(KubernetesApi(cluster.api))
    quoted = urllib.parse.quote(name, safe="")
    nodes, pods = f"/api/v1/nodes/{quoted}", f"/api/v1/namespaces/team-a/pods/{quoted}"
    for request, path in (
        (lambda: cluster.cordon_node(name, "why"), nodes),
        (lambda: cluster.unreachable_nodes([name]), nodes),
        (lambda: cluster.delete_pod(KEY, name), pods),
        (lambda: cluster.resize_pod(KEY, pod, "pytorch", {}), f"{pods}/resize"),
        (
            lambda: proxy.request(KEY, pod, "GET", "/v1/status", None),
            f"/api/v1/namespaces/team-a/pods/http:{quoted}:7411/proxy/v1/status",
        ),
    ):
        with contextlib.suppress(errors.RoverError):  # there is no such object
            request()
        assert paths.pop() == path
    assert paths == []


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_segment_that_leads_elsewhere_is_refused(name):
    """Quoting does not change dots."""
    with pytest.raises(errors.InputError, match="not the name of an object"):
        resource_path("/api/v1", "nodes", name)


def test_a_coordinator_reports_nodes_of_its_own_job_only():
    """Of all that it reports, only what holds a pod of the job is left out or cordoned."""
    policy = {"nodes.cordon": "on", "scaling.mode": "auto"}
    stored = make_job(policy=policy)
    identity = {"uid": "u", "resourceVersion": "1"}
    job = conversion.parse_job({**stored, "metadata": {**stored["metadata"], **identity}})
    now = time.time()
    reported = tuple(FaultyNode(node, "p", "kind", "r", now) for node in (*NAMES, "other", "n1"))
    status = CoordinatorStatus(
        "digits", "training", 1, 2, 2, 2, 1, None, None, None, 1.0, 0, (), Goodput(), (), now, now,
        faulty_nodes=reported,
    )  # fmt: skip
    pods = tuple(
        Pod(f"digits-worker-{i}", str(i), "worker", i, "Running", "10.0.0.1", node=f"n{i}")
        for i in range(2)
    )
    observed = Observed(job, pods, status, policy_source.policy_from_job(job))
    plan = node_exclusion.apply(ReconcilePlan((), JobStatus()), observed, now)
    assert [one.node for one in plan.effects if isinstance(one, Cordon)] == ["n1"]
    assert [one.node for one in plan.status.excluded_nodes] == ["n1"]
