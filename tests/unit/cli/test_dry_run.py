# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``--dry-run`` of the verbs that steer a job: the diff of the object, and nothing is changed."""

from __future__ import annotations

import pytest
from local_jobs import FOREVER, job, replica

from rover_kf.cli import main
from rover_kf.client import RoverClient
from rover_kf.cluster.kubernetes import config
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from tests.support.faults.api_stand_in import failure, serving
from tests.support.jobs.job_manifests import make_job

ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}
DURABLE = {"rover-kf.io/checkpoint.path": "/checkpoints"}
JOB = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"


@pytest.fixture
def call(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


@pytest.fixture
def rover(tmp_path, monkeypatch):
    """An embedded client with a running job; the command line finds it in the same folder."""
    monkeypatch.delenv("ROVER_KF_ON", raising=False)
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    with RoverClient() as client:
        client.submit(job("small", worker=replica(FOREVER), **ELASTIC), inject=False)
        client.wait("small", until="Running", timeout=60)
        yield client


@pytest.fixture
def server(monkeypatch):
    """A stand-in for the API server with a job; the command line's cluster is that one."""
    with serving() as found:
        cluster = KubernetesCluster(found.client())
        monkeypatch.setattr(config, "from_environment", lambda **_: cluster)
        manifest = make_job(elastic=(1, 3))
        manifest["metadata"]["annotations"] = DURABLE
        found.put(JOB, manifest)
        yield found


def changed(diff):
    """Lines that a diff takes away and adds."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    return [f"{line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-"]


def test_scaling_is_shown_and_not_done(rover, call):
    """The one line that would change; what is so already, and what is refused, as without it."""
    before = rover.get("small").manifest
    code, out, err = call("scale", "small", 3, "--dry-run")
    assert (code, changed(out), err) == (0, ["- replicas: 1", "+ replicas: 3"], "")
    code, out, err = call("scale", "small", 1, "--dry-run")
    assert (code, out) == (0, "")
    assert "nothing would change: PyTorchJob default/small is so already" in err
    code, out, err = call("scale", "small", 4, "--dry-run")
    assert (code, out) == (2, "")
    assert "4 worker replicas; allowed: 1 to 3" in err
    assert rover.get("small").manifest == before


def test_pausing_and_resuming_are_shown_and_not_done(rover, call):
    """What would be lost is refused as without it; the pods train on, and stay away."""
    code, out, err = call("pause", "small", "--dry-run")
    assert (code, out, "in its pods' memory alone" in err) == (2, "", True)
    code, out, _ = call("pause", "small", "--force", "--dry-run")
    assert (code, changed(out)) == (0, ["+ runPolicy:", "+ suspend: true"])
    assert rover.get("small").phase == "Running"
    assert "nothing would change" in call("resume", "small", "--dry-run")[2]
    rover.pause("small", force=True, wait=60)
    rover.wait("small", until="Suspended", timeout=60)
    assert call("pause", "small", "--dry-run")[1] == ""
    code, out, _ = call("resume", "small", "--dry-run")
    assert (code, changed(out)) == (0, ["- suspend: true", "+ suspend: false"])
    assert rover.get("small").suspended


@pytest.mark.parametrize(("verb", "more"), [("scale", [3]), ("pause", [])])
def test_a_cluster_is_asked_and_not_changed(server, call, verb, more):
    """The API server says whether it would take the patch, and stores nothing."""
    before = server.objects[JOB]
    words = ("--on", "kubernetes", verb, "digits", *more, "-n", "team", "--dry-run")
    server.hooks.append(lambda method, _: (200, before) if method == "PATCH" else None)
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert changed(out)
    server.hooks[0] = lambda method, _: (
        failure(403, "Forbidden", "a quota says no") if method == "PATCH" else None
    )
    code, out, err = call(*words)
    assert (code, out, "a quota says no" in err) == (2, "", True)
    asked = [one for one in server.requests if one[0] != "GET"]
    assert [(one[0], one[2]) for one in asked] == [("PATCH", {"dryRun": "All"})] * 2
    assert server.objects[JOB] == before
