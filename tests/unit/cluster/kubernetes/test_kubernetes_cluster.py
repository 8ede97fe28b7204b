# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""KubernetesCluster's requests, and what becomes of the API server's refusals and failures.

That it does what every cluster must is proven on a real one (tests/cluster).
"""

from __future__ import annotations

import dataclasses
import http.server
import json
import logging
import threading

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey, Pod
from rover_kf.api.status import ScaleRequest
from rover_kf.cluster.kubernetes import transport
from rover_kf.cluster.kubernetes.config import from_environment
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from rover_kf.cluster.kubernetes.transport import PodNetworkTransport
from tests.support.faults.api_stand_in import failure, serving
from tests.support.jobs.job_manifests import make_job

KEY = JobKey("team", "digits")
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
def server():
    with serving() as found:
        yield found


@pytest.fixture
def cluster(server):
    return KubernetesCluster(server.client())


def pod(index=0, **status):
    labels = {
        names.JOB_NAME_LABEL: "digits",
        names.REPLICA_TYPE_LABEL: "worker",
        names.REPLICA_INDEX_LABEL: str(index),
    }
    return {
        "metadata": {"name": f"digits-worker-{index}", "namespace": "team", "labels": labels},
        "status": status,
    }


def test_a_job_is_created_read_patched_and_deleted(cluster, server):
    """Requests go to the job's own path, patches as merge patches with the caller's token."""
    made = cluster.create_job(make_job())
    assert made.key == KEY
    assert cluster.get_job(KEY).uid == made.uid
    patch = {"metadata": {"annotations": {"a": "1"}}}
    patched = cluster.patch_job(KEY, patch, resource_version=made.resource_version)
    assert patched.annotations == {"a": "1"}
    assert patched.labels == made.labels
    method, path, _, body, headers = server.requests[-1]
    assert (method, path) == ("PATCH", f"{JOBS}/digits")
    assert body["metadata"] == {
        "annotations": {"a": "1"},
        "resourceVersion": made.resource_version,
    }
    assert headers["content-type"] == "application/merge-patch+json"
    assert headers["authorization"] == "Bearer caller"
    assert patch == {"metadata": {"annotations": {"a": "1"}}}
    cluster.delete_job(KEY)
    cluster.delete_job(KEY)
    assert server.requests[-1][3] == {"propagationPolicy": "Background"}
    assert server.objects == {}


def test_refusals_become_errors_of_the_tree(cluster):
    """Each refusal is the error that the protocol promises, with the server's own message."""
    with pytest.raises(errors.NoSuchJob, match="digits not found"):
        cluster.get_job(KEY)
    with pytest.raises(errors.NoSuchJob, match="PyTorchJob team/digits"):
        cluster.patch_job(KEY, {})
    made = cluster.create_job(make_job())
    with pytest.raises(errors.JobExists, match="digits already exists"):
        cluster.create_job(make_job())
    with pytest.raises(errors.Conflict, match="has been modified"):
        cluster.patch_job(KEY, {}, resource_version="1")
    assert cluster.get_job(KEY).resource_version == made.resource_version


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (failure(400, "BadRequest", "denied: replicas"), errors.InputError, "denied: replicas"),
        (failure(403, "Forbidden", "may not"), errors.InputError, "may not"),
        (failure(422, "Invalid", "is invalid"), errors.InputError, "is invalid"),
        (failure(429, "TooManyRequests", "slow"), errors.ClusterUnavailable, "slow"),
        (failure(500, "InternalError", "broke"), errors.ClusterUnavailable, "broke"),
        ((503, "no endpoints"), errors.ClusterUnavailable, "answered 503"),
        ((404, "404 page not found"), errors.ClusterUnavailable, "Training Operator"),
        (failure(404, "NotFound", 'namespaces "team" not found'), errors.InputError, "namespaces"),
    ],
)
def test_what_the_server_answers_decides_the_error(cluster, server, reply, error, message):
    """Bad input is the caller's, overload and crashes may be retried, a missing CRD is said."""
    server.hooks.append(lambda *_: reply)
    with pytest.raises(error, match=message):
        cluster.create_job(make_job())


def test_no_server_is_said(server):
    """A refused connection is ClusterUnavailable."""
    client = server.client()
    client.configuration.host = "http://127.0.0.1:9"
    with pytest.raises(errors.ClusterUnavailable, match="does not answer"):
        KubernetesCluster(client).get_job(KEY)


def test_lists_are_read_page_by_page(cluster, server):
    """All labelled jobs of one or all namespaces, beyond one page; items get their kind back."""
    for number in range(3):
        item = make_job(name=f"j{number}")
        del item["kind"], item["apiVersion"]
        server.put(f"{JOBS}/j{number}", item)
    asked = []

    def small_pages(method, path):
        asked.append((method, path))
        server.requests[-1][2]["limit"] = "2"

    server.hooks.append(small_pages)
    assert [job.key.name for job in cluster.list_jobs()] == ["j0", "j1", "j2"]
    group = "/apis/kubeflow.org/v1"
    assert asked == [("GET", f"{group}/pytorchjobs")] * 2 + [("GET", f"{group}/tfjobs")]
    assert server.requests[0][2]["labelSelector"] == "rover-kf.io/inject=true"
    assert [job.key.name for job in cluster.list_jobs("team")] == ["j0", "j1", "j2"]
    assert cluster.list_jobs("other") == ()


@pytest.mark.parametrize(
    "refusal",
    [failure(403, "Forbidden", "tfjobs is forbidden"), (404, "404 page not found"), None],
    ids=["not allowed", "not known", "listed"],
)
def test_tfjobs_are_listed_beside_pytorchjobs(cluster, server, caplog, refusal):
    """Where the cluster knows them and the caller may list them; else that is logged once."""
    server.put(f"{JOBS}/digits", make_job())
    wide = make_job(kind="TFJob", name="wide")
    del wide["kind"], wide["apiVersion"]
    server.put("/apis/kubeflow.org/v1/namespaces/team/tfjobs/wide", wide)
    server.hooks.append(lambda _, path: refusal if path.endswith("/tfjobs") else None)
    with caplog.at_level(logging.INFO):
        listed = [[job.key for job in cluster.list_jobs("team")] for _ in range(3)]
    beside = [] if refusal else [JobKey("team", "wide", "TFJob")]
    assert listed == [[KEY, *beside]] * 3
    assert len(caplog.messages) == bool(refusal)


def test_pods_come_in_replica_order(cluster, server):
    """Master first, then workers by number, with what the kubelet says of their containers."""
    for index in (10, 2):
        server.put(f"{PODS}/digits-worker-{index}", pod(index, phase="Pending"))
    master = pod(0, phase="Running", podIP="10.0.0.1")
    master["metadata"]["labels"][names.REPLICA_TYPE_LABEL] = "master"
    master["spec"] = {"nodeName": "n1"}
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "last"}}
    master["status"]["containerStatuses"] = [
        {"name": "pytorch", "state": {"running": {}}, "lastState": ended, "restartCount": 2}
    ]
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    master["status"]["initContainerStatuses"] = [
        {"name": "rover-sidecar", "state": waiting, "lastState": {"terminated": {"exitCode": 1}}}
    ]
    server.put(f"{PODS}/digits-zmaster-0", master)
    first, *rest = cluster.list_pods(KEY)
    assert [item.replica_index for item in rest] == [2, 10]
    assert (first.replica_type, first.address, first.node, first.phase) == (
        "master",
        "10.0.0.1",
        "n1",
        "Running",
    )
    sidecar, trainer = first.containers
    assert (trainer.running, trainer.restarts, trainer.exit_code) == (True, 2, 137)
    assert (trainer.reason, trainer.termination_message) == ("OOMKilled", "last")
    assert (sidecar.running, sidecar.exit_code, sidecar.reason) == (False, 1, "CrashLoopBackOff")
    selector = server.requests[-1][2]["labelSelector"]
    assert selector.split(",") == [
        "training.kubeflow.org/job-name=digits",
        "training.kubeflow.org/operator-name=pytorchjob-controller",
    ]


def test_why_a_pod_ends(cluster, server):
    """The status' reason, and the disruption that is about to end a pod which still runs."""
    evicted = pod(0, phase="Failed", reason="Evicted", message="The node was low on resource")
    server.put(f"{PODS}/digits-worker-0", evicted)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    past = target | {"status": "False", "reason": "DeletionByTaintManager"}
    ready = {"type": "Ready", "status": "True", "reason": "odd"}
    conditions = [ready, past, target | {"message": "to accommodate a higher priority pod"}]
    server.put(f"{PODS}/digits-worker-1", pod(1, phase="Running", conditions=conditions))
    server.put(f"{PODS}/digits-worker-2", pod(2, phase="Running"))
    assert [(item.reasons, item.message) for item in cluster.list_pods(KEY)] == [
        (("Evicted",), "The node was low on resource"),
        (("PreemptionByScheduler",), "to accommodate a higher priority pod"),
        ((), ""),
    ]


def test_deleting_a_pod_that_is_gone_is_no_error(cluster, server):
    """Twice is once."""
    server.put(f"{PODS}/digits-worker-0", pod())
    cluster.delete_pod(KEY, "digits-worker-0")
    cluster.delete_pod(KEY, "digits-worker-0")
    assert server.objects == {}


def test_a_pod_is_abandoned_only_if_it_is_that_one(cluster, server):
    """Without grace, under the condition of its uid; gone already is no error."""
    server.put(f"{PODS}/digits-worker-0", pod())
    (found,) = cluster.list_pods(KEY)
    assert not found.ready
    cluster.force_delete_pod(KEY, found)
    cluster.force_delete_pod(KEY, found)
    method, path, _, body, _ = server.requests[-2]
    assert (method, path) == ("DELETE", f"{PODS}/digits-worker-0")
    assert body == {"gracePeriodSeconds": 0, "preconditions": {"uid": found.uid}}
    assert server.objects == {}


def test_a_tfjobs_pod_has_failed_by_a_signal_before_it_is_deleted(cluster, server):
    """One that is said to run while it is deleted would fail the job (Training Operator 1.9.3)."""
    server.put(f"{PODS}/digits-worker-0", pod())
    (found,) = cluster.list_pods(KEY)
    server.put(f"{PODS}/digits-worker-0/status", {})
    cluster.force_delete_pod(dataclasses.replace(KEY, kind="TFJob"), found)
    asked = [(method, path, body) for method, path, _, body, _ in server.requests[-2:]]
    (patch, where, marked), (method, path, _) = asked
    assert (patch, where) == ("PATCH", f"{PODS}/digits-worker-0/status")
    assert marked["metadata"] == {"uid": found.uid}
    status = marked["status"]
    assert status["phase"] == "Failed"
    (trainer,) = status["containerStatuses"]
    assert trainer["name"] == "tensorflow"
    assert trainer["state"]["terminated"]["exitCode"] == 137
    assert (method, path) == ("DELETE", f"{PODS}/digits-worker-0")


def test_silent_nodes_are_those_nobody_hears(cluster, server):
    """A kubelet that says it is not ready is heard; a node that is gone is not silent."""
    at = "2026-01-01T00:00:10Z"
    for name, status in (("n1", "Unknown"), ("n2", "False"), ("n3", "True")):
        ready = {"type": "Ready", "status": status, "lastTransitionTime": at}
        server.put(f"/api/v1/nodes/{name}", {"status": {"conditions": [ready]}})
    asked = {"n1", "n2", "n3", "n4"}
    assert cluster.unreachable_nodes(asked) == {"n1": 1767225610.0}


def test_who_may_not_read_nodes_is_told_once(cluster, server, caplog):
    """Not at every look, with what it means; again after it could be read in between."""
    refused = failure(403, "Forbidden", 'nodes "n1" is forbidden')
    closed = [True]
    server.put("/api/v1/nodes/n1", {"status": {"allocatable": {"memory": "8Gi"}}, "spec": {}})
    server.hooks.append(lambda _, path: refused if closed and "/nodes" in path else None)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            assert cluster.unreachable_nodes({"n1", "n2"}) == {}
            assert cluster.node_sizes("memory") == ()
        silence, sizes = caplog.messages
        assert "whether nodes are silent: not looked at" in silence
        assert 'nodes "n1" is forbidden' in silence
        assert "go when Kubernetes removes them" in silence
        assert "without regard to the size of nodes" in sizes
        closed.clear()
        cluster.unreachable_nodes({"n1"})
        assert cluster.node_sizes("memory") == ("8Gi",)
        closed.append(True)
        cluster.unreachable_nodes({"n1"})
    assert len(caplog.messages) == 3


def test_events_are_told_once(cluster, server):
    """A line with a sequence is stored once however often it is told; one without, each time."""
    job = cluster.create_job(make_job())
    for _ in range(2):
        cluster.emit(KEY, Event("Told", "counted", at=5.5, sequence=7, source="digits-worker-0"))
        cluster.emit(KEY, Event("Told", "x" * 3000, warning=True))
    stored = [item for path, item in server.objects.items() if "/events/" in path]
    assert len(stored) == 3
    (counted,) = [item for item in stored if item["message"] == "counted"]
    assert counted["involvedObject"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "namespace": "team",
        "name": "digits",
        "uid": job.uid,
    }
    assert counted["eventTime"] == "1970-01-01T00:00:05.500000Z"
    assert counted["firstTimestamp"] == "1970-01-01T00:00:05Z"
    assert counted["type"] == "Normal"
    assert max(len(item["message"]) for item in stored) == 1024
    found = cluster.list_events(KEY)
    assert (found[0].message, found[0].at, found[0].source) == ("counted", 5.5, "digits-worker-0")
    assert [event.warning for event in found] == [False, True, True]


def test_the_coordinator_is_read_through_the_api_server(cluster, server):
    """Without the pod network GET goes through the pod's proxy; what needs our token is refused."""
    with pytest.raises(errors.ClusterUnavailable, match="no first pod"):
        cluster.call_coordinator(KEY, "GET", "/v1/status")
    server.put(f"{PODS}/digits-worker-0", pod(phase="Running", podIP="10.0.0.1"))
    proxied = f"{PODS}/http:digits-worker-0:7411/proxy/v1/status"
    server.hooks.append(lambda _, path: (200, {"step": 3}) if path == proxied else None)
    assert json.loads(cluster.call_coordinator(KEY, "GET", "/v1/status?after=4")) == {"step": 3}
    assert server.requests[-1][2] == {"after": "4"}
    server.hooks[0] = lambda _, path: (503, "down") if path == proxied else None
    with pytest.raises(errors.ClusterUnavailable):
        cluster.call_coordinator(KEY, "GET", "/v1/status")
    with pytest.raises(errors.ClusterUnavailable, match="pod network"):
        cluster.call_coordinator(KEY, "POST", "/v1/scale", ScaleRequest(3))


@pytest.fixture
def sidecar(monkeypatch):
    """A sidecar's port on the loopback; remembers what it was sent."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, body, self.headers["Authorization"]))
            code = 200 if b"3" in body else 409
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b'{"done":true}')

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setattr(transport.names, "PORT", server.server_port)
    yield got
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_pod_network_sends_the_tokens_of_the_job(sidecar, tmp_path):
    """Each request asks for the token again: it ends after minutes."""
    tokens = iter(("one", "two", "three"))
    network = PodNetworkTransport(tmp_path / "none", lambda key: f"{next(tokens)} of {key.name}")
    pod_there = Pod("digits-worker-0", "u", "worker", 0, "Running", "127.0.0.1")
    for _ in range(2):
        assert network.request(KEY, pod_there, "POST", "/v1/scale", b"3") == b'{"done":true}'
    assert [item[2] for item in sidecar] == ["Bearer one of digits", "Bearer two of digits"]
    with pytest.raises(errors.ClusterUnavailable, match="refused POST /v1/scale: 409"):
        network.request(KEY, pod_there, "POST", "/v1/scale", b"4")


def test_the_pod_network_says_what_is_missing(tmp_path):
    """No token, a pod that does not run, a port that nobody listens on: each is said."""
    network = PodNetworkTransport(tmp_path / "none")
    there = Pod("p", "u", "worker", 0, "Running", "127.255.255.253")  # no test's own
    with pytest.raises(errors.ClusterUnavailable, match="token"):
        network.request(KEY, there, "POST", "/v1/scale", b"3")
    with pytest.raises(errors.ClusterUnavailable, match="is Pending"):
        network.request(KEY, Pod("p", "u", "worker", 0, "Pending"), "GET", "/v1/status", None)
    with pytest.raises(errors.ClusterUnavailable, match="does not answer"):
        network.request(KEY, there, "GET", "/v1/status", None)


def test_a_cordoned_node_says_why(cluster, server):
    """As `kubectl cordon` does, with the reason; a refusal is the API server's own."""
    server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})
    cluster.cordon_node("n1", "its GPU is gone")
    method, path, _, body, _ = server.requests[-1]
    assert (method, path) == ("PATCH", "/api/v1/nodes/n1")
    why = {"rover-kf.io/cordoned": "its GPU is gone"}
    assert body == {"metadata": {"annotations": why}, "spec": {"unschedulable": True}}
    server.hooks.append(lambda *_: failure(403, "Forbidden", 'nodes "n1" is forbidden'))
    with pytest.raises(errors.InputError, match="is forbidden"):
        cluster.cordon_node("n1", "its GPU is gone")


def test_no_cluster_is_said(tmp_path):
    """A kubeconfig that is not there names what to do."""
    with pytest.raises(errors.ClusterUnavailable, match="KUBECONFIG"):
        from_environment(kubeconfig=str(tmp_path / "none"))


def test_no_configuration_is_not_a_broken_one(tmp_path, monkeypatch):
    """Without any kubeconfig that is said, with what to do; of a broken one its path and fault."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(errors.ClusterUnavailable, match=r"no kubeconfig; set KUBECONFIG") as told:
        from_environment()
    assert "Invalid" not in str(told.value)
    broken = tmp_path / "broken"
    broken.write_text("kind: Config\n")
    with pytest.raises(errors.ClusterUnavailable, match=r"broken: .*mend it"):
        from_environment(kubeconfig=str(broken))


def test_a_pod_without_a_node_says_why(cluster, server):
    """The scheduler's own words and since when; none once a place is being freed for the pod."""
    placed = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available", "lastTransitionTime": "1970-01-01T00:01:00Z",
    }  # fmt: skip
    waits = pod(0, phase="Pending", conditions=[placed])
    chosen = pod(1, phase="Pending", conditions=[placed], nominatedNodeName="node-1")
    gated = pod(2, phase="Pending", conditions=[placed | {"reason": "SchedulingGated"}])
    items = [
        item | {"metadata": item["metadata"] | {"uid": "u"}} for item in (waits, chosen, gated)
    ]
    server.hooks.append(lambda *_: (200, {"items": items}))
    found = [(one.unschedulable, one.unschedulable_since) for one in cluster.list_pods(KEY)]
    assert found == [("0/3 nodes are available", 60.0), ("", 0.0), ("", 0.0)]
