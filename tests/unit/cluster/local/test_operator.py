# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster keeps the Training Operator's and the kubelet's rules."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap

import pytest
from local_jobs import FOREVER, container, job, replica

from rover_kf import errors
from rover_kf.api import names
from rover_kf.cluster.local import LocalCluster, settings
from rover_kf.cluster.local.operator import clean_orphans
from rover_kf.cluster.local.store import Store
from tests.support.waiting import eventually

WAIT = 60.0


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def cluster(state):
    with LocalCluster(state) as found:
        yield found


def ended(cluster, key):
    return eventually(lambda: (j := cluster.get_job(key)).finished and j, within=WAIT)


def running(cluster, key, count=1):
    def pods():
        found = cluster.list_pods(key)
        return found if len(found) == count and {p.phase for p in found} == {"Running"} else None

    return eventually(pods, within=WAIT)


def alive(pid):
    try:
        return (
            "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


PRINT_ENV = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"


def test_a_master_job_has_the_operators_environment(cluster):
    """Master and workers get address, rank and size; names are addresses of their own."""
    manifest = job("m", replica(PRINT_ENV), replica(PRINT_ENV, replicas=2), nprocPerNode="2")
    key = cluster.create_job(manifest).key
    assert ended(cluster, key).phase == "Succeeded"
    master = cluster.list_pods(key)[0]
    eventually(lambda: {p.phase for p in cluster.list_pods(key)} == {"Succeeded"}, within=WAIT)
    seen = json.loads(cluster.read_log(key, "m-worker-1", "pytorch"))
    assert seen["MASTER_ADDR"] == seen["PET_MASTER_ADDR"] == master.address
    assert seen["MASTER_PORT"] == "23456"
    assert seen["WORLD_SIZE"] == "6"
    assert seen["RANK"] == seen["PET_NODE_RANK"] == "2"
    assert seen["PET_NNODES"] == "3"
    assert seen["PET_NPROC_PER_NODE"] == "2"
    assert "PET_RDZV_ENDPOINT" not in seen
    assert seen["HOSTNAME"] == "m-worker-1"
    assert "PYTEST_CURRENT_TEST" not in seen
    assert len({pod.address for pod in cluster.list_pods(key)}) == 3


def test_an_elastic_job_has_the_operators_environment(cluster):
    """Workers of an elasticPolicy get a range of nodes and the rendezvous endpoint only."""
    policy = {"minReplicas": 1, "maxReplicas": 3, "rdzvConf": [{"key": "a", "value": "b"}]}
    key = cluster.create_job(job("e", worker=replica(PRINT_ENV), elasticPolicy=policy)).key
    ended(cluster, key)
    (pod,) = cluster.list_pods(key)
    seen = json.loads(cluster.read_log(key, pod.name, "pytorch"))
    assert seen["PET_NNODES"] == "1:3"
    assert seen["PET_RDZV_ENDPOINT"] == f"{pod.address}:23456"
    assert seen["PET_RDZV_BACKEND"] == "c10d"
    assert seen["PET_RDZV_CONF"] == "a=b"
    assert "WORLD_SIZE" not in seen
    assert "MASTER_ADDR" not in seen


def test_variables_refer_to_the_pod_and_to_one_another(cluster):
    """FieldRef, $(VAR), $$(VAR), mount paths and service names are resolved as in a cluster."""
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "INDEX",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}
            },
        },
        {"name": "BOTH", "value": "$(POD)/$(INDEX) $$(POD) $(NOBODY)"},
        {"name": "PEER", "value": "tcp://v-worker-0.default.svc:1"},
        {"name": "PLACE", "value": "/data/sub"},
        {"name": "PLACES", "value": "/other:/data"},
        {"name": "NOT", "value": "/database"},
        {"name": "JSON", "value": '{"path":"/data/sub","shards":"/data","other":"/database"}'},
    ]
    worker = replica(
        PRINT_ENV,
        env=env,
        volumeMounts=[{"name": "d", "mountPath": "/data"}],
        pod={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
    )
    key = cluster.create_job(job("v", worker=worker)).key
    ended(cluster, key)
    (pod,) = cluster.list_pods(key)
    seen = json.loads(cluster.read_log(key, pod.name, "pytorch"))
    claim = cluster.store.root / "volumes" / "c"
    assert seen["POD"] == "v-worker-0"
    assert seen["IP"] == pod.address
    assert seen["BOTH"] == "v-worker-0/0 $(POD) $(NOBODY)"
    assert seen["PEER"] == f"tcp://{pod.address}:1"
    assert seen["PLACE"] == f"{claim}/sub"
    assert seen["PLACES"] == f"/other:{claim}"
    assert seen["NOT"] == "/database"
    paths = {"path": f"{claim}/sub", "shards": str(claim), "other": "/database"}
    assert json.loads(seen["JSON"]) == paths
    assert claim.is_dir()


def test_a_failed_container_restarts_in_place_and_keeps_memory(cluster):
    """Under OnFailure the pod stays, its memory-backed volume too; the restart is counted."""
    script = "if [ -e /m/been ]; then exit 0; fi; touch /m/been; exit 7".replace("/m/", "$M/")
    worker = replica(
        script,
        policy="OnFailure",
        env=[{"name": "M", "value": "/m"}],
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        pod={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]},
    )
    key = cluster.create_job(job("again", worker=worker)).key
    assert ended(cluster, key).phase == "Succeeded"
    (pod,) = cluster.list_pods(key)
    assert pod.containers[0].restarts == 1
    assert pod.containers[0].exit_code == 0
    assert not list(pathlib.Path("/dev/shm").glob(f"rkf-{pod.uid[:8]}-*"))


@pytest.mark.parametrize(("code", "phase"), [(3, "Failed"), (138, "Succeeded")])
def test_exit_code_policy_replaces_the_pod_from_128_on(cluster, code, phase):
    """Under ExitCode codes below 128 fail the job; from 128 on the pod is made anew."""
    worker = replica(
        f"if [ -e $D/been ]; then exit 0; fi; touch $D/been; exit {code}",
        policy="ExitCode",
        env=[{"name": "D", "value": "/d"}],
        volumeMounts=[{"name": "d", "mountPath": "/d"}],
        pod={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
    )
    key = cluster.create_job(job("code", worker=worker)).key
    assert ended(cluster, key).phase == phase
    made = [e for e in cluster.list_events(key) if e.reason == "SuccessfulCreatePod"]
    assert len(made) == (2 if phase == "Succeeded" else 1)


def test_the_backoff_limit_fails_a_job(cluster):
    """Restarts of running pods are summed; at the limit the job has failed."""
    worker = replica("exit 5", policy="OnFailure", pod={"terminationGracePeriodSeconds": 1})
    keeper = replica(FOREVER)
    manifest = job("limit", keeper, worker, runPolicy={"backoffLimit": 2, "cleanPodPolicy": "All"})
    key = cluster.create_job(manifest).key
    found = ended(cluster, key)
    assert found.phase == "Failed"
    assert "backoff limit" in found.manifest["status"]["conditions"][-1]["message"]
    eventually(lambda: not cluster.list_pods(key), within=WAIT)


def test_an_elastic_job_succeeds_with_its_first_worker(cluster):
    """Under an elasticPolicy one worker that ends with 0 completes the job (facts of v1.9)."""
    script = f'if [ "$I" = 1 ]; then exit 0; fi; {FOREVER}'
    env = [
        {
            "name": "I",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}
            },
        }
    ]
    manifest = job(
        "first",
        worker=replica(script, replicas=2, env=env),
        elasticPolicy={"minReplicas": 1, "maxReplicas": 2},
    )
    key = cluster.create_job(manifest).key
    assert ended(cluster, key).phase == "Succeeded"
    # The other one may not even have begun when the first is through.
    eventually(lambda: cluster.list_pods(key)[0].phase == "Running", within=WAIT)


def test_the_master_decides(cluster):
    """A job with a Master succeeds when the Master does, whatever its workers do."""
    key = cluster.create_job(job("lead", replica("exit 0"), replica(FOREVER))).key
    assert ended(cluster, key).phase == "Succeeded"


def test_init_containers_come_first_in_order(cluster):
    """Init containers run to their end in order, then a native sidecar, then the container."""
    say = {"env": [{"name": "F", "value": "/d/story"}]}
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}

    def step(name, script, **more):
        return {**container(script), "name": name, **say, **mount, **more}

    pod = {
        "initContainers": [
            step("one", "echo one >> $F"),
            step("two", "echo two >> $F"),
            step("side", f"echo side >> $F; {FOREVER}", restartPolicy="Always"),
            step("three", "while ! grep -q side $F; do sleep 0.02; done; echo three >> $F"),
        ],
        "volumes": [{"name": "d", "emptyDir": {}}],
    }
    key = cluster.create_job(job("init", worker=replica("cat $F", pod=pod, **say, **mount))).key
    assert ended(cluster, key).phase == "Succeeded"
    text = cluster.read_log(key, "init-worker-0", "pytorch")
    assert text.split() == ["one", "two", "side", "three"]
    codes = {c.name: c.exit_code for c in cluster.list_pods(key)[0].containers}
    assert codes["side"] == 143
    assert codes["pytorch"] == 0


def test_who_sees_a_job_ended_sees_how_its_pods_ended(cluster, monkeypatch):
    """At the moment when the end is stored, the pods that it was concluded from are stored."""
    seen, update = [], cluster.store.update

    def updated(key, change):
        update(key, change)
        if cluster.get_job(key).finished:
            seen.extend((pod.phase, pod.containers[0].exit_code) for pod in cluster.list_pods(key))

    monkeypatch.setattr(cluster.store, "update", updated)
    key = cluster.create_job(job("seen", worker=replica("exit 0"))).key
    ended(cluster, key)
    assert eventually(lambda: seen, within=WAIT)[0] == ("Succeeded", 0)


def test_a_native_sidecar_is_waited_for_and_restarted(cluster):
    """The container starts after the startup probe passes; a crashed sidecar comes back."""
    server = (
        "import http.server, os, sys\n"
        "h = http.server.SimpleHTTPRequestHandler\n"
        "http.server.HTTPServer((os.environ['IP'], 8123), h).serve_forever()\n"
    )
    side = {
        "name": "side",
        "image": "none",
        "restartPolicy": "Always",
        "command": ["python", "-c", server],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "startupProbe": {"httpGet": {"path": "/", "port": 8123}},
    }
    pod = {"initContainers": [side]}
    key = cluster.create_job(job("probe", worker=replica(FOREVER, pod=pod))).key
    running(cluster, key)
    before = eventually(lambda: cluster.processes(key, "probe-worker-0", "side"))
    os.kill(before[0], signal.SIGKILL)

    def restarted():
        return next(
            c for c in cluster.list_pods(key)[0].containers if c.name == "side"
        ).restarts == 1 and cluster.processes(key, "probe-worker-0", "side")

    assert set(eventually(restarted, within=WAIT)).isdisjoint(before)
    assert cluster.get_job(key).phase == "Running"


def test_a_container_leaves_no_process_behind(cluster):
    """What a command left in the background ends with it, even in a session of its own."""
    key = cluster.create_job(
        job("left", worker=replica("setsid sleep 1000 & echo $!; sleep 0.2; exit 0"))
    ).key
    assert ended(cluster, key).phase == "Succeeded"
    pid = int(cluster.read_log(key, "left-worker-0", "pytorch").split()[0])
    eventually(lambda: not alive(pid), within=WAIT)


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(cluster):
    """A deleted pod has its grace period, not more."""
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    worker = replica(stubborn, pod={"terminationGracePeriodSeconds": 1})
    key = cluster.create_job(job("stubborn", worker=worker)).key
    (pod,) = running(cluster, key)
    pids = eventually(lambda: cluster.processes(key, pod.name, "pytorch"))
    cluster.delete_job(key)
    eventually(lambda: not any(alive(pid) for pid in pids), within=WAIT)
    with pytest.raises(errors.NoSuchJob):
        eventually(lambda: cluster.get_job(key) is None, within=WAIT)


def test_leaving_the_cluster_ends_everything(state):
    """After ``with`` no process and no memory is left; the job has failed and says why."""
    worker = replica(
        FOREVER,
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        pod={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]},
    )
    with LocalCluster(state) as cluster:
        key = cluster.create_job(job("left", worker=worker)).key
        (pod,) = running(cluster, key)
        pids = eventually(lambda: cluster.processes(key, pod.name, "pytorch"))
        assert list(pathlib.Path("/dev/shm").glob(f"rkf-{pod.uid[:8]}-*"))
    assert not any(alive(pid) for pid in pids)
    assert not list(pathlib.Path("/dev/shm").glob(f"rkf-{pod.uid[:8]}-*"))
    with LocalCluster(state) as again:
        assert again.get_job(key).phase == "Failed"
        with pytest.raises(errors.JobExists):
            again.create_job(job("left", worker=worker))
        again.delete_job(key)
        with pytest.raises(errors.NoSuchJob):
            again.get_job(key)


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_cluster_leaves_nothing_running(state, tmp_path, forks):
    """SIGKILL of the process that runs the jobs ends their processes and frees their memory, also
    where a child that it has forked lives on."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, pathlib, sys, time
        from rover_kf.cluster.local import LocalCluster
        cluster = LocalCluster(pathlib.Path(sys.argv[1]))
        key = cluster.create_job(json.loads(sys.argv[2])).key
        while not (pods := cluster.list_pods(key)) or pods[0].phase != "Running":
            time.sleep(0.05)
        while not (pids := cluster.processes(key, pods[0].name, "pytorch")):
            time.sleep(0.05)
        child = os.fork() if sys.argv[3] == "True" else 0
        if child or sys.argv[3] == "False":
            print(json.dumps([pods[0].uid, pids, child]), flush=True)
        time.sleep(1000)
        """)
    )
    worker = replica(
        "setsid sh -c 'sleep 1000' & " + FOREVER,
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        pod={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]},
    )
    manifest = json.dumps(job("orphan", worker=worker))
    with subprocess.Popen(
        [sys.executable, script, state, manifest, str(forks)], stdout=subprocess.PIPE
    ) as process:
        try:
            uid, pids, child = json.loads(process.stdout.readline())
        finally:
            process.kill()
    try:
        eventually(lambda: not any(alive(pid) for pid in pids), within=WAIT)
        # Nobody has to come for that.
        volumes = pathlib.Path("/dev/shm")
        eventually(lambda: not list(volumes.glob(f"rkf-{uid[:8]}-*")), within=WAIT)
        assert alive(child) == forks
    finally:
        if forks:
            os.kill(child, signal.SIGKILL)
    eventually(lambda: not alive(child), within=WAIT)  # it holds the job's lock, too
    with LocalCluster(state) as cluster:
        (found,) = cluster.list_jobs()
        assert found.phase == "Failed"


def test_a_job_that_its_process_removes_meanwhile_is_nothing_to_settle(state):
    """Between the list of jobs and the look at one, which nobody runs any more by then."""

    class Late(Store):
        def acquire_owner(self, key):
            found = super().acquire_owner(key)
            self.remove(key)
            return found

    with LocalCluster(state) as cluster:
        cluster.create_job(job("left", worker=replica("exit 0")))
    late = Late(state)
    clean_orphans(late)
    assert late.jobs() == ()


def test_another_process_may_scale_and_delete(state, cluster):
    """The state folder is the API: a second cluster object reads, patches and deletes."""
    key = cluster.create_job(job("shared", worker=replica(FOREVER))).key
    running(cluster, key)
    with LocalCluster(state) as other:
        eventually(lambda: other.get_job(key).phase == "Running", within=WAIT)  # its pods first
        other.patch_job(key, {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}})
        running(other, key, 2)
        eventually(lambda: "ready" in other.read_log(key, "shared-worker-1", "pytorch"))
        other.delete_job(key)
    eventually(lambda: not cluster.list_jobs(), within=WAIT)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m | {"kind": "TFJob"}, "kind is 'TFJob'"),
        (lambda m: m | {"apiVersion": "v1"}, "apiVersion"),
        (lambda m: m | {"metadata": {"name": "Not_Good"}}, "metadata.name"),
        (lambda m: m | {"spec": {}}, "pytorchReplicaSpecs"),
        (lambda m: _worker(m, replicas=0), "replicas is 0"),
        (lambda m: _trainer(m, command=["python", "nowhere.py"]), "nowhere.py.*a script"),
        (lambda m: _trainer(m, command=["torchrun", "--x", "no.py", "a"]), r"no\.py"),
        (lambda m: _trainer(m, command=None), "there is no image"),
        (lambda m: _trainer(m, envFrom=[{"configMapRef": {"name": "c"}}]), "envFrom"),
        (lambda m: _trainer(m, volumeMounts=[{"name": "x", "mountPath": "/x"}]), "volumes"),
    ],
)
def test_what_cannot_run_here_is_refused(cluster, change, match):
    """Bad input is refused before anything starts: key, value and what is allowed."""
    manifest = change(job("bad", worker=replica(FOREVER)))
    with pytest.raises(errors.ManifestError, match=match):
        cluster.create_job(manifest)
    assert cluster.list_jobs() == ()


def _worker(manifest, **changes):
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"] | changes
    return manifest | {"spec": {"pytorchReplicaSpecs": {"Worker": worker}}}


def _trainer(manifest, **changes):
    spec = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    changed = {**spec["containers"][0], **changes}
    changed = {key: value for key, value in changed.items() if value is not None}
    return _worker(manifest, template={"spec": {**spec, "containers": [changed]}})


def test_a_script_is_found_beside_its_manifest(cluster, tmp_path):
    """A relative script runs from the manifest's folder, by the interpreter that runs us."""
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, *sys.argv[1:])")
    manifest = _trainer(job("beside", worker=replica("")), command=["python", "train.py", "-x"])
    manifest = _trainer(manifest, workingDir="/not/on/this/machine")
    key = cluster.create_job(manifest, folder=tmp_path).key
    assert ended(cluster, key).phase == "Succeeded"
    assert cluster.read_log(key, "beside-worker-0", "pytorch").split() == [sys.executable, "-x"]


def test_without_shared_memory_a_socket_has_room_in_its_path(tmp_path, monkeypatch):
    """Volumes lie below the state folder, or where that is deep with other temporary files."""
    monkeypatch.setattr(settings, "_SHARED_MEMORY", tmp_path / "not there")
    short, deep = pathlib.Path("/home/somebody/.rover-kf/memory"), tmp_path / ("deep/" * 20)
    assert settings.memory_folder(short) == short
    with tempfile.TemporaryDirectory() as near:
        monkeypatch.setattr(tempfile, "tempdir", near)
        volume = settings.memory_folder(deep) / "rkf-00000000-0"
        (volume / names.SOCKET).parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(volume / names.SOCKET))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(errors.ClusterUnavailable, match="ROVER_KF_STATE"):
        settings.memory_folder(deep)
