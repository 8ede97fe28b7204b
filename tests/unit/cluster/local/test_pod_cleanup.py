# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a finished job of the embedded cluster still holds: after a while nothing that runs."""

from __future__ import annotations

import pathlib
import socket

import pytest
from local_jobs import FOREVER, job, replica

from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.local.job_runtime import LEASE_PORT, pod_action
from rover_kf.cluster.local.settings import Timing
from tests.support.waiting import eventually

WAIT = 60.0
TIMING = Timing(after_failure=5.0, after_success=30.0)
IN_MEMORY = {
    "volumeMounts": [{"name": "m", "mountPath": "/m"}, {"name": "d", "mountPath": "/d"}],
    "pod": {
        "volumes": [
            {"name": "m", "emptyDir": {"medium": "Memory"}},
            {"name": "d", "emptyDir": {}},
        ]
    },
}


def finished(phase, policy=None):
    run_policy = {} if policy is None else {"runPolicy": {"cleanPodPolicy": policy}}
    manifest = job("fate", worker=replica("exit 0"), **run_policy)
    return manifest | {"status": {"conditions": [{"type": phase, "status": "True"}]}}


@pytest.mark.parametrize(
    ("manifest", "phase", "since", "expected"),
    [
        (finished("Failed"), "Running", 4.9, "leave"),
        (finished("Failed"), "Running", 5.0, "end"),
        (finished("Failed"), "Pending", 5.0, "end"),
        (finished("Failed"), "Failed", 5.0, "leave"),
        (finished("Succeeded"), "Running", 29.9, "leave"),
        (finished("Succeeded"), "Running", 30.0, "end"),
        (finished("Succeeded", "None"), "Running", 30.0, "end"),
        (finished("Succeeded", "None"), "Succeeded", 30.0, "leave"),
        (finished("Succeeded", "Running"), "Running", 0.0, "delete"),
        (finished("Succeeded", "Running"), "Succeeded", 99.0, "leave"),
        (finished("Failed", "All"), "Failed", 0.0, "delete"),
    ],
)
def test_what_becomes_of_a_pod(manifest, phase, since, expected):
    """CleanPodPolicy says what is deleted; what it leaves alone is ended after a while."""
    assert pod_action(manifest, phase, since=since, timing=TIMING) == expected


def held(cluster, key):
    """Processes and volumes of a job's pods."""
    pods = cluster.list_pods(key)
    pids = {pid for pod in pods for pid in cluster.processes(key, pod.name, "pytorch")}
    memory = {path for pod in pods for path in pathlib.Path("/dev/shm").glob(f"rkf-{pod.uid[:8]}*")}
    return pids, memory


def gone(pids, memory):
    return not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()] and not [
        path for path in memory if path.exists()
    ]


def said_ready(cluster, key, pod):
    eventually(lambda: pod in [one.name for one in cluster.list_pods(key)], within=WAIT)
    eventually(lambda: "ready" in cluster.read_log(key, pod, "pytorch"), within=WAIT)
    # It may have said so before the cluster has noted its process.
    eventually(lambda: cluster.processes(key, pod, "pytorch"), within=WAIT)


def ended(cluster, key):
    return eventually(lambda: (j := cluster.get_job(key)).finished and j, within=WAIT)


def is_free(address):
    """Whether another job could have the network of that address.

    Not by a lease of a job of the same name: whichever name's network is taken when a job begins,
    by another test's job for one, it has the next one.
    """
    with socket.socket() as lease:
        try:
            lease.bind((f"{address.rpartition('.')[0]}.255", LEASE_PORT))
        except OSError:
            return False
    return True


@pytest.mark.parametrize(
    ("limit", "worker", "told"),
    [
        ({"backoffLimit": 1}, "exit 5", "backoff limit"),
        ({"activeDeadlineSeconds": 1}, FOREVER, "longer than specified deadline"),
    ],
)
def test_a_limit_ends_all_pods(tmp_path, limit, worker, told):
    """Whatever cleanPodPolicy says, as the operator does; the pods' logs can be read on."""
    master = replica(FOREVER, **IN_MEMORY)
    manifest = job("limit", master, replica(worker, policy="OnFailure"))
    patient = Timing(after_failure=1000.0)
    with LocalCluster(tmp_path / "state", patient) as cluster:
        key = cluster.create_job(manifest).key
        said_ready(cluster, key, "limit-master-0")
        pids, memory = held(cluster, key)
        assert pids
        assert len(memory) == 1
        # From now on, however long the pods took to begin.
        cluster.patch_job(key, {"spec": {"runPolicy": limit}})
        found = ended(cluster, key)
        assert found.phase == "Failed"
        assert told in found.manifest["status"]["conditions"][-1]["message"]
        eventually(lambda: gone(pids, memory), within=WAIT, what="nothing runs")
        eventually(lambda: {p.phase for p in cluster.list_pods(key)} == {"Failed"}, within=WAIT)
        assert [pod.deleting for pod in cluster.list_pods(key)] == [False, False]
        assert "ready" in cluster.read_log(key, "limit-master-0", "pytorch")
        work = cluster.store.folder(key) / "work"
        assert not [*work.iterdir()]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_pods_that_go_on_after_the_end_are_ended(tmp_path, code, phase):
    """The workers of a master that has ended; then the job's addresses are another's to have."""
    script = f"while ! [ -e {tmp_path}/end ]; do sleep 0.02; done; exit {code}"
    master, worker = replica(script, policy="Never"), replica(FOREVER, **IN_MEMORY)
    timing = Timing(after_failure=0.5, after_success=0.5)
    with LocalCluster(tmp_path / "state", timing) as cluster:
        key = cluster.create_job(job("lead", master, worker)).key
        said_ready(cluster, key, "lead-worker-0")
        pids, memory = held(cluster, key)
        address = cluster.list_pods(key)[0].address
        assert not is_free(address)
        (tmp_path / "end").touch()
        assert ended(cluster, key).phase == phase
        eventually(lambda: gone(pids, memory), within=WAIT, what="nothing runs")
        eventually(lambda: is_free(address), within=WAIT, what="the addresses are free")
        assert "ready" in cluster.read_log(key, "lead-worker-0", "pytorch")
        cluster.delete_job(key)
        eventually(lambda: not cluster.list_jobs(), within=WAIT)
