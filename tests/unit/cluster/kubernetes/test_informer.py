# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Mirrors of an API server's collections: what they hold, whom they tell, what they spare."""

from __future__ import annotations

import contextlib
import threading

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes import informer
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.cached_cluster import CachedCluster
from rover_kf.cluster.kubernetes.informer import Informer
from tests.support.faults.api_stand_in import failure, serving
from tests.support.jobs.job_manifests import make_job
from tests.support.waiting import eventually

KEY = JobKey("team", "digits")
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
TFJOBS = "/apis/kubeflow.org/v1/namespaces/team/tfjobs"
PODS = "/api/v1/namespaces/team/pods"
_AUTOSCALERS = "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(informer, "PAUSE_SECONDS", 0.02)
    with serving() as found:
        yield found


def item(name, version):
    metadata = {"name": name, "namespace": "team", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": metadata}


def change(kind, name, version):
    return {"type": kind, "object": item(name, version)}


@contextlib.contextmanager
def following(follow):
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def mirror_of(server, told):
    return Informer(
        KubernetesApi(server.client()),
        PODS,
        what="pods",
        query={"labelSelector": "a=b"},
        transform=lambda found: int(found["metadata"]["resourceVersion"]),
        on_change=told.append,
    )


def test_a_mirror_lists_in_pages_then_watches(server, monkeypatch):
    """All pages are read, changes follow from their version on, and each is told once."""
    monkeypatch.setattr(informer, "PAGE", 2)
    for name in ("a", "b", "c"):
        server.put(f"{PODS}/{name}", item(name, 0))
    server.watches = [[change("MODIFIED", "a", 200), change("DELETED", "b", 201)]]
    told = []
    mirror = mirror_of(server, told)
    with following(mirror.follow):
        eventually(lambda: len(told) == 5, what="three listed and two changed")
    assert mirror.synced.is_set()
    assert mirror.get(("team", "a")) == 200
    assert set(mirror.keys()) == {("team", "a"), ("team", "c")}
    watched = next(query for _, _, query, _, _ in server.requests if "watch" in query)
    assert watched["resourceVersion"] == "103"
    assert watched["labelSelector"] == "a=b"


def test_a_mirror_that_fell_behind_lists_again(server):
    """After 410 what is gone meanwhile is dropped and told; nothing older comes back."""
    server.put(f"{PODS}/a", item("a", 0))
    told = []
    mirror = mirror_of(server, told)

    def forget(_method, _path):
        if len(told) == 1:
            server.objects.clear()

    server.hooks.append(forget)
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    server.watches = [[gone], [change("MODIFIED", "b", 300), change("MODIFIED", "b", 299)]]
    with following(mirror.follow):
        eventually(lambda: len(told) == 3, what="a listed, a dropped, b heard of")
    assert told == [("team", "a"), ("team", "a"), ("team", "b")]
    assert mirror.get(("team", "b")) == 300


def test_a_mirror_goes_on_after_a_failure(server):
    """An API server that fails is asked again, and what is known stays known meanwhile."""
    server.put(f"{PODS}/a", item("a", 0))
    tries = []

    def fail_twice(_method, _path):
        tries.append(1)
        return (503, "no endpoints") if len(tries) < 3 else None

    server.hooks.append(fail_twice)
    mirror = mirror_of(server, [])
    with following(mirror.follow):
        eventually(mirror.synced.is_set, what="the third try")
    assert len(mirror) == 1


def test_our_own_write_is_read_back_and_told_to_nobody(server):
    """An answer to a write counts at once; its echo does not, nor does one of what is gone."""
    server.put(f"{PODS}/a", item("a", 0))
    told = []
    mirror = mirror_of(server, told)
    with following(mirror.follow):
        eventually(mirror.synced.is_set, what="the list")
        mirror.record_write(item("a", 400))
        mirror.record_write(item("a", 399))
        mirror.record_write(item("never-seen", 500))
        assert mirror.get(("team", "a")) == 400
        server.watches = [[change("MODIFIED", "a", 400), change("MODIFIED", "a", 401)]]
        eventually(lambda: mirror.get(("team", "a")) == 401, what="somebody else's change")
    assert told == [("team", "a")] * 2
    assert mirror.get(("team", "never-seen")) is None


@pytest.fixture
def told():
    return []


@pytest.fixture
def cluster(server, told):
    """Two pods of one job, mirrored."""
    server.put(f"{JOBS}/digits", make_job())
    for index in (1, 0):
        labels = {
            names.JOB_NAME_LABEL: "digits",
            names.OPERATOR_NAME_LABEL: "pytorchjob-controller",
            names.REPLICA_TYPE_LABEL: "worker",
            names.REPLICA_INDEX_LABEL: str(index),
        }
        metadata = {"name": f"digits-worker-{index}", "namespace": "team", "labels": labels}
        server.put(f"{PODS}/digits-worker-{index}", {"metadata": metadata, "status": {}})
    found = CachedCluster(server.client(), None, told.append)
    stop = threading.Event()
    found.follow(stop)
    eventually(lambda: told and len(found.list_pods(KEY)) == 2, what="the mirrors")
    yield found
    stop.set()
    eventually(lambda: not found.is_following(), what="the mirrors' end")


def test_a_mirror_of_one_namespace_asks_for_no_other(server):
    """Who has rights in one namespace alone reads that one's collections."""
    found = CachedCluster(server.client(), None, lambda _: None, namespace="team")
    stop = threading.Event()
    found.follow(stop)
    wanted = {PODS, JOBS, TFJOBS}
    eventually(lambda: wanted <= {one[1] for one in server.requests}, what="the mirrors")
    stop.set()
    eventually(lambda: not found.is_following(), what="the mirrors' end")
    assert {one[1] for one in server.requests} == wanted


def test_a_tfjob_is_mirrored_beside_a_pytorchjob_of_its_name(server, told):
    """Each with its own pods; both are told of and counted."""
    ours = JobKey("team", "digits", "TFJob")
    server.put(f"{JOBS}/digits", make_job())
    server.put(f"{TFJOBS}/digits", make_job(kind="TFJob"))
    for maker, kind in (("pytorchjob", "worker"), ("tfjob", "ps")):
        name = f"digits-{kind}-0"
        labels = {
            names.JOB_NAME_LABEL: "digits",
            names.OPERATOR_NAME_LABEL: f"{maker}-controller",
            names.REPLICA_TYPE_LABEL: kind,
            names.REPLICA_INDEX_LABEL: "0",
        }
        metadata = {"name": name, "namespace": "team", "labels": labels}
        server.put(f"{PODS}/{name}", {"metadata": metadata, "status": {}})
    found = CachedCluster(server.client(), None, told.append)
    stop = threading.Event()
    found.follow(stop)
    eventually(lambda: set(told) == {KEY, ours}, what="both jobs")
    assert found.get_job(ours).manifest["kind"] == "TFJob"
    assert [pod.name for pod in found.list_pods(ours)] == ["digits-ps-0"]
    assert [pod.name for pod in found.list_pods(KEY)] == ["digits-worker-0"]
    assert set(found.job_keys()) == {KEY, ours}
    assert found.job_count() == 2
    stop.set()
    eventually(lambda: not found.is_following(), what="the mirrors' end")


def test_a_kind_that_the_api_server_does_not_have_is_looked_for_later(server, monkeypatch):
    """The Training Operator may be installed after the controller."""
    monkeypatch.setattr(informer, "ABSENT_SECONDS", 0.02)
    tries = []

    def lacking(_method, _path):
        tries.append(1)
        return failure(404, "NotFound", "no such resource") if len(tries) < 3 else None

    server.hooks.append(lacking)
    mirror = mirror_of(server, [])
    with following(mirror.follow):
        eventually(mirror.synced.is_set, what="the third try")


def asked(server):
    """Requests that are not the mirrors' own."""
    own = ("watch", "limit")
    return [
        (method, path)
        for method, path, query, _, _ in server.requests
        if not any(word in query for word in own)
    ]


def test_jobs_and_pods_are_read_without_requests(cluster, server, told):
    """As the API server has them: kind, defaults, replica order."""
    before = len(asked(server))
    job = cluster.get_job(KEY)
    assert (job.key, job.manifest["kind"], job.nodes) == (KEY, "PyTorchJob", 2)
    assert job.uid == server.objects[f"{JOBS}/digits"]["metadata"]["uid"]
    assert [pod.name for pod in cluster.list_pods(KEY)] == ["digits-worker-0", "digits-worker-1"]
    assert cluster.list_pods(JobKey("team", "other")) == ()
    assert cluster.job_keys() == (KEY,)
    assert len(asked(server)) == before
    assert told == [KEY]
    with pytest.raises(errors.NoSuchJob):
        cluster.get_job(JobKey("team", "other"))


def test_a_patch_is_read_back_and_a_late_one_shows_why(cluster, server, told):
    """After a conflict the job is what it is by now, however late the watch."""
    old = cluster.get_job(KEY)
    cluster.patch_job(KEY, {"metadata": {"annotations": {"a": "1"}}})
    mine = cluster.get_job(KEY)
    assert mine.annotations["a"] == "1"
    server.put(f"{JOBS}/digits", {**server.objects[f"{JOBS}/digits"], "spec": {}})
    with pytest.raises(errors.Conflict):
        cluster.patch_job(KEY, {}, resource_version=old.resource_version)
    assert cluster.get_job(KEY).manifest["spec"] == {}
    assert told == [KEY]


def test_a_pod_is_deleted_only_if_it_is_the_one_that_was_seen(cluster, server):
    """Its successor of the same name is not, though the mirror be late."""
    uid = cluster.list_pods(KEY)[0].uid
    cluster.delete_pod(KEY, "digits-worker-0")
    method, path, _, body, _ = next(one for one in server.requests if one[0] == "DELETE")
    assert (method, path) == ("DELETE", f"{PODS}/digits-worker-0")
    assert body == {"preconditions": {"uid": uid}}
    cluster.delete_pod(KEY, "digits-worker-0")


def test_what_bounds_a_namespace_is_believed_until_a_size_changes(cluster, server):
    """Many jobs ask within seconds; a job of ours that grows leaves less room."""
    for kind in ("/api/v1/namespaces/team/resourcequotas", _AUTOSCALERS):
        server.put(kind, {"items": []})
    first = cluster.namespace_objects("team")
    before = len(server.requests)
    assert cluster.namespace_objects("team") is first
    assert not [one for one in server.requests[before:] if "quotas" in one[1]]
    cluster.patch_job(KEY, {"spec": {}})
    assert cluster.namespace_objects("team") is not first
