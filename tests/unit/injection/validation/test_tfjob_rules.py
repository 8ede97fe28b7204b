# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob injected: which pods are one world, which are their own, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.coordinator.address_broadcast import other_pods
from rover_kf.injection import inject as injection
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds.tfjob.kind import TFJOB
from rover_kf.sidecar import settings as sidecar_settings
from tests.support.jobs.job_manifests import environment_of, make_job

SETTINGS = InjectionSettings(sidecar_image="rover/sidecar:1", controller_account="sys:controller")
MOUNT = {"name": "ckpt", "mountPath": "/ckpt"}
SERVERS = ("PS", "Worker", "Evaluator")


def make_tfjob(counts, policy=None, **changes):
    """A TFJob with so many replicas of each type; only the chief mounts the checkpoints."""
    plain = make_job(kind="TFJob", command=["python", "train.py"], policy=policy)
    mounted = make_job(kind="TFJob", command=["python", "train.py"], mount=MOUNT)
    templates = {
        kind: (mounted if kind in ("Chief", "Master") else plain)["spec"]["tfReplicaSpecs"]
        for kind in counts
    }
    plain["spec"] = {
        "tfReplicaSpecs": {
            kind: {**copy.deepcopy(templates[kind]["Worker"]), "replicas": count}
            for kind, count in counts.items()
        },
        **changes,
    }
    return plain


def parts_of(job, kind):
    """Trainer, sidecar and spec of a replica type."""
    spec = job["spec"]["tfReplicaSpecs"][kind]
    pod = spec["template"]["spec"]
    (trainer,) = (item for item in pod["containers"] if item["name"] == "tensorflow")
    (sidecar,) = (item for item in pod["initContainers"] if item["name"] == names.SIDECAR_CONTAINER)
    return trainer, sidecar, spec


def settings_of(job, kind, index):
    """What the sidecar of a pod reads, its variables expanded as the kubelet does."""
    _, sidecar, _ = parts_of(job, kind)
    fields = {
        "metadata.name": f"digits-{kind.lower()}-{index}",
        f"metadata.labels['{names.REPLICA_TYPE_LABEL}']": kind.lower(),
        f"metadata.labels['{names.REPLICA_INDEX_LABEL}']": str(index),
    }
    found = {}
    for name, value in environment_of(sidecar).items():
        text = fields.get(value, value)
        for known in (names.ENV_JOB, names.ENV_REPLICA_INDEX):
            text = text.replace(f"$({known})", found.get(known, f"$({known})"))
        found[name] = text
    return sidecar_settings.read(found)


def injected(job, **options):
    """The injected job."""
    return injection.inject(job, settings=SETTINGS, **options).manifest


def test_a_chief_is_the_world_and_servers_are_worlds_of_their_own():
    """Of Chief, workers, PS and evaluator the chief alone keeps state and has storage."""
    counts = {"Chief": 1, "Worker": 2, "PS": 2, "Evaluator": 1}
    job = injected(make_tfjob(counts, {"checkpoint.path": "/ckpt/digits"}))
    chief = settings_of(job, "Chief", 0)
    assert (chief.is_coordinator, chief.nodes, chief.min_nodes, chief.max_nodes) == (True, 1, 1, 1)
    assert chief.policy.checkpoint.path == "/ckpt/digits"
    assert chief.arena_bytes == 512 << 20
    for kind in SERVERS:
        for index in range(counts[kind]):
            alone = settings_of(job, kind, index)
            assert alone.is_coordinator
            assert (alone.nodes, alone.max_nodes) == (1, 1)
            assert (alone.policy.checkpoint.path, alone.arena_bytes) == (None, 1 << 20)
            assert other_pods(alone) == []
        _, sidecar, _ = parts_of(job, kind)
        assert "/ckpt" not in [mount["mountPath"] for mount in sidecar["volumeMounts"]]
    assert other_pods(chief) == []


def test_servers_are_told_that_they_serve():
    """A chief's and an evaluator's launcher are not, nor mirrored workers'."""
    counts = {"Chief": 1, "Worker": 2, "PS": 1, "Evaluator": 1}
    job = injected(make_tfjob(counts))
    told = {kind for kind in counts if names.ENV_SERVES in environment_of(parts_of(job, kind)[0])}
    assert told == {"Worker", "PS"}
    mirrored = injected(make_tfjob({"Worker": 2}))
    assert names.ENV_SERVES not in environment_of(parts_of(mirrored, "Worker")[0])


@pytest.mark.parametrize("first", ["Chief", "Master"])
def test_without_servers_all_train_together(first):
    """Chief and workers are one world of a fixed size, in TensorFlow's order of tasks."""
    job = injected(make_tfjob({first: 1, "Worker": 2, "Evaluator": 1}))
    found = [settings_of(job, first, 0), *(settings_of(job, "Worker", i) for i in range(2))]
    assert [item.node_rank for item in found] == [0, 1, 2]
    assert {(item.nodes, item.min_nodes, item.max_nodes) for item in found} == {(3, 3, 3)}
    assert {item.coordinator_host for item in found} == {f"digits-{first.lower()}-0"}
    assert other_pods(found[0]) == ["digits-worker-0", "digits-worker-1"]
    assert settings_of(job, "Evaluator", 0).node_rank == 0
    workers = injected(make_tfjob({"Worker": 2}))
    assert [settings_of(workers, "Worker", i).node_rank for i in range(2)] == [0, 1]


def test_every_pod_runs_under_the_launcher_and_is_made_anew():
    """rover-run starts each script; the operator's default, Never, would fail the job."""
    job = make_tfjob({"Chief": 1, "Worker": 1, "PS": 1})
    done = injection.inject(job, settings=SETTINGS)
    for kind in ("Chief", "Worker", "PS"):
        trainer, _, spec = parts_of(done.manifest, kind)
        assert trainer["command"][1].endswith("rover_run.py")
        assert trainer["command"][-1] == "train.py"
        assert spec["restartPolicy"] == "ExitCode"
    assert sum("became ExitCode" in event.message for event in done.warnings) == 3
    kept = make_tfjob({"Worker": 1})
    kept["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    assert parts_of(injected(kept), "Worker")[2]["restartPolicy"] == "OnFailure"


def test_the_volume_has_room_for_files_before_they_are_saved():
    """TensorFlow writes a checkpoint's files into memory, then they are taken into a slot."""
    job = injected(make_tfjob({"Chief": 1, "Worker": 1, "PS": 1}))
    sizes = {}
    for kind in ("Chief", "PS"):
        volumes = parts_of(job, kind)[2]["template"]["spec"]["volumes"]
        (shared,) = (item for item in volumes if item["name"] == names.VOLUME)
        sizes[kind] = shared["emptyDir"]["sizeLimit"]
    assert sizes == {"Chief": "832Mi", "PS": "65Mi"}  # 512 and its half, 1, each with 64 of margin


def test_a_gang_is_all_pods():
    """No TFJob starts with fewer pods than its TF_CONFIG names."""
    gang = {"runPolicy": {"schedulingPolicy": {"queue": "q"}}}
    for counts in ({"Chief": 1, "Worker": 2, "PS": 2}, {"Chief": 1, "Worker": 3, "Evaluator": 1}):
        job = injected(make_tfjob(counts, **gang))
        assert job["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] == 5


def test_injecting_twice_changes_nothing_and_can_be_undone():
    """As with a PyTorchJob; every pod's containers become those that the user wrote."""
    job = make_tfjob({"Chief": 1, "Worker": 2, "PS": 1}, {"checkpoint.path": "/ckpt"})
    done = injected(job)
    assert injected(done) == done
    bare = injection.remove(done)
    for kind in ("Chief", "Worker", "PS"):
        pods = (item["spec"]["tfReplicaSpecs"][kind]["template"]["spec"] for item in (bare, job))
        left, written = pods
        assert left["containers"] == written["containers"]
        assert left.get("volumes") == written.get("volumes")
        assert "initContainers" not in left


@pytest.mark.parametrize(
    ("counts", "changes", "policy", "says"),
    [
        ({"Worker": 1, "PS": 1}, {}, {}, r"Chief is None; allowed: a Chief beside PS"),
        ({"Chief": 1, "PS": 1}, {}, {}, r"Worker is None; allowed: at least one Worker"),
        ({"Chief": 1, "Master": 1, "Worker": 1}, {}, {}, r"Master\.replicas is 2; allowed: 1"),
        ({"PS": 1}, {}, {}, "a Worker that trains"),
        (
            {"Chief": 1, "Worker": 1, "PS": 1},
            {"enableDynamicWorker": True},
            {},
            r"scaling\.max is None; allowed: a number, 1 or more, with spec\.enableDynamicWorker",
        ),
        (
            {"Chief": 1, "Worker": 4, "PS": 1},
            {"enableDynamicWorker": True},
            {"scaling.max": "3"},
            r"Worker\.replicas is 4; allowed: 1 to 3",
        ),
        (
            {"Chief": 1, "Worker": 1},
            {"enableDynamicWorker": True},
            {"scaling.max": "3"},
            r"enableDynamicWorker is True; allowed: false, or PS beside the workers",
        ),
        ({"Worker": 2}, {}, {"scaling.mode": "auto"}, "off or recommend: TF_CONFIG fixes"),
        ({"Worker": 2}, {}, {"scaling.max": "4"}, r"scaling\.max is 4; allowed: 2, the job's"),
        ({"Worker": 2}, {}, {"scaling.min": "1"}, r"scaling\.min is 1; allowed: 2, the job's"),
        ({"Worker": 2}, {}, {"scaling.ps-max": "2"}, r"ps-max is 2; allowed: nothing without PS"),
        (
            {"Chief": 1, "Worker": 1, "PS": 2},
            {},
            {"scaling.ps-max": "1"},
            r"scaling\.ps-max is 1; allowed: 2, the job's PS replicas, or more",
        ),
        (
            {"Chief": 1, "Worker": 2, "PS": 1},
            {},
            {"scaling.max": "1"},
            r"Worker\.replicas is 2; allowed: 1 to 1",
        ),
        ({"Worker": 2}, {}, {"preflight.mode": "report"}, "off: the check needs torch"),
        (
            {"Chief": 1, "Worker": 2},
            {},
            {"checkpoint.peer-copy": "on"},
            r"peer-copy is 'on'; allowed: off, or PS in the job",
        ),
    ],
)
def test_what_cannot_train_is_refused(counts, changes, policy, says):
    """Each with the key, its value and what may stand there."""
    with pytest.raises(errors.InputError, match=says):
        injected(make_tfjob(counts, policy, **changes))


@pytest.mark.parametrize("first", ["Chief", "Master"])
def test_the_first_server_keeps_a_copy_of_the_chiefs_newest_save(first):
    """Where the policy says so: it has room for one of the chief's two slots, and each of the two
    knows the other. Other servers share its template, and keep nothing."""
    counts = {first: 1, "Worker": 1, "PS": 2}
    assert settings_of(injected(make_tfjob(counts)), first, 0).keeper_host == ""
    job = injected(make_tfjob(counts, {"checkpoint.peer-copy": "on"}))
    chief = settings_of(job, first, 0)
    assert (chief.keeper_host, chief.keeps_host) == ("digits-ps-0", "")
    assert chief.arena_bytes == 512 << 20
    for index, kept in ((0, f"digits-{first.lower()}-0"), (1, "")):
        server = settings_of(job, "PS", index)
        assert (server.keeper_host, server.keeps_host) == ("", kept)
        assert server.arena_bytes == 257 << 20
    worker = settings_of(job, "Worker", 0)
    assert (worker.keeper_host, worker.keeps_host, worker.arena_bytes) == ("", "", 1 << 20)
    _, sidecar, spec = parts_of(job, "PS")
    assert sidecar["resources"]["limits"]["memory"] == "449Mi"  # 192 of its own
    volumes = spec["template"]["spec"]["volumes"]
    (shared,) = (item for item in volumes if item["name"] == names.VOLUME)
    assert shared["emptyDir"]["sizeLimit"] == "321Mi"
    assert injected(job) == job


def test_a_copy_needs_no_policy_where_pods_keep_each_others_state():
    """A PyTorchJob that asks for one is refused, with why it need not."""
    job = make_job(policy={"checkpoint.peer-copy": "on"})
    with pytest.raises(errors.PolicyError, match="off: a PyTorchJob's pods keep copies"):
        injected(job)


SHARDS = {"checkpoint.shards": "/ckpt/parts"}


def mounted_by(job, *kinds, **volume):
    """The job whose types mount the volume of the checkpoints, or another one."""
    for kind in kinds:
        pod = job["spec"]["tfReplicaSpecs"][kind]["template"]["spec"]
        pod["containers"][0]["volumeMounts"] = [MOUNT]
        pod["volumes"] = [
            {"name": "ckpt", **(volume or {"persistentVolumeClaim": {"claimName": "c"}})}
        ]
    return job


@pytest.mark.parametrize("first", ["Chief", "Master"])
def test_the_chief_is_told_where_servers_write(first):
    """It alone, in the job's own folder; a name that the API server makes up is put in by the
    kubelet. Injecting twice changes nothing."""
    counts = {first: 1, "Worker": 1, "PS": 2}
    job = injected(mounted_by(make_tfjob(counts, SHARDS), "PS"))
    told = {kind: environment_of(parts_of(job, kind)[0]) for kind in counts}
    assert told[first][names.ENV_CHECKPOINT_SHARDS] == "/ckpt/parts/digits"
    assert [kind for kind in counts if names.ENV_CHECKPOINT_SHARDS in told[kind]] == [first]
    assert injected(job) == job
    unnamed = mounted_by(make_tfjob(counts, SHARDS), "PS")
    del unnamed["metadata"]["name"]
    unnamed["metadata"]["generateName"] = "digits-"
    variables = list(environment_of(parts_of(injected(unnamed), first)[0]).items())
    assert variables[-1] == (names.ENV_CHECKPOINT_SHARDS, f"/ckpt/parts/$({names.ENV_JOB})")
    assert names.ENV_JOB in dict(variables)


@pytest.mark.parametrize(
    ("counts", "mounts", "volume", "policy", "says"),
    [
        ("Chief Worker", (), {}, {}, r"shards is '/ckpt/parts'; allowed: nothing, or PS"),
        ("Chief Worker PS", (), {}, {}, r"PS.*volumeMounts is None; allowed: a mount that holds"),
        (
            "Chief Worker PS",
            ("PS",),
            {"emptyDir": {}},
            {},
            "each pod has an emptyDir of its own; /ckpt/parts",
        ),
        ("Chief Worker PS", ("PS",), {"configMap": {}}, {}, "a mount that may be written"),
        (
            "Chief Worker PS",
            ("PS",),
            {},
            {"checkpoint.shards": "/ckpt/../etc"},
            r"an absolute path without \.\.",
        ),
    ],
)
def test_where_servers_cannot_write_is_refused(counts, mounts, volume, policy, says):
    """By name, before anything starts."""
    made = make_tfjob(dict.fromkeys(counts.split(), 1), SHARDS | policy)
    with pytest.raises((errors.PolicyError, errors.ManifestError), match=says):
        injected(mounted_by(made, *mounts, **volume))


def test_servers_write_nothing_where_workers_come_and_go_or_there_are_none():
    """Such a chief reads the variables by a session; a PyTorchJob has no servers."""
    dynamic = make_tfjob(
        {"Chief": 1, "Worker": 1, "PS": 1}, SHARDS | {"scaling.max": "3"}, enableDynamicWorker=True
    )
    with pytest.raises(errors.PolicyError, match=r"allowed: nothing with spec\.enableDynamicW"):
        injected(mounted_by(dynamic, "PS"))
    with pytest.raises(errors.PolicyError, match="a PyTorchJob has none"):
        injected(make_job(policy=SHARDS))


COMING = {"scaling.max": "3"}


def coming(workers, policy=None, **changes):
    """A TFJob whose workers come and go."""
    counts = {"Chief": 1, "Worker": workers, "PS": 2}
    return make_tfjob(counts, policy or COMING, enableDynamicWorker=True, **changes)


def test_workers_that_come_and_go_know_all_addresses_and_the_chiefs_ledger():
    """Every process is told of all that may ever be there; a worker is a client, which drains."""
    job = coming(1)
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["ports"] = [{"name": "tfjob-port", "containerPort": 3333}]
    done = injected(job)
    for kind in ("Chief", "Worker", "PS"):
        trainer, _, _ = parts_of(done, kind)
        found = environment_of(trainer)
        order = list(found)
        assert order.index(names.ENV_JOB) < order.index(names.ENV_TF_CLUSTER)
        assert order.index(names.ENV_NAMESPACE) < order.index(names.ENV_TF_CLUSTER)
        host = "$(ROVER_JOB)-{}.$(ROVER_NAMESPACE).svc:{}"
        assert json.loads(found[names.ENV_TF_CLUSTER]) == {
            "chief": [host.format("chief-0", 2222)],
            "worker": [host.format(f"worker-{index}", 3333) for index in range(3)],
            "ps": [host.format(f"ps-{index}", 2222) for index in range(2)],
        }
        assert (names.ENV_SERVES in found) == (kind == "PS")
    assert settings_of(done, "Worker", 2).ledger_host == "digits-chief-0"
    assert settings_of(done, "Worker", 2).is_coordinator
    assert settings_of(done, "Chief", 0).ledger_host == ""
    assert settings_of(done, "PS", 1).ledger_host == ""
    assert injected(done) == done
    bare = injection.remove(done)
    assert bare["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"] == pod


def test_every_sidecar_of_such_a_job_has_the_certificate():
    """The chief's lends records by TLS, a worker's asks by TLS."""
    done = injected(coming(1, COMING | {"tls.secret": "pods"}))
    for kind in ("Chief", "Worker", "PS"):
        _, sidecar, spec = parts_of(done, kind)
        assert settings_of(done, kind, 0).tls_home == pathlib.Path(names.TLS_HOME)
        assert names.TLS_VOLUME in [mount["name"] for mount in sidecar["volumeMounts"]]
        volumes = spec["template"]["spec"]["volumes"]
        (held,) = (volume for volume in volumes if volume["name"] == names.TLS_VOLUME)
        assert held["projected"]["sources"][0]["secret"]["name"] == "pods"


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (coming(3), None),
        (coming(1), None),
        (coming(2, {"scaling.max": "5"}), r"scaling\.max is '5'; allowed: 3 while the job runs"),
        (
            make_tfjob({"Chief": 1, "Worker": 2, "PS": 2}, COMING),
            "enableDynamicWorker is False; allowed: true while the job runs",
        ),
        (
            make_tfjob({"Chief": 1, "Worker": 2, "PS": 1}, COMING, enableDynamicWorker=True),
            r"PS\.replicas is 1; allowed: 2 while the job runs",
        ),
        (
            make_tfjob({"Chief": 1, "PS": 2}, COMING, enableDynamicWorker=True),
            r"Worker\.replicas is None; allowed: 2 while the job runs",
        ),
    ],
)
def test_only_workers_come_and_go(after, says):
    """Neither servers nor the bound that they were started with; nor may all workers go."""
    before = coming(2)
    if says is None:
        TFJOB.check_update(before, after, "job")
        return
    with pytest.raises(errors.InputError, match=says):
        TFJOB.check_update(before, after, "job")


@pytest.mark.parametrize(
    "policy",
    [
        {"cpu.max": "500m"},
        {"scaling.max": "4", "scaling.ps-max": "3"},
        {"scaling.min": "1", "scaling.max": "4"},
    ],
)
def test_a_job_with_servers_may_be_given_more_of_all(policy):
    """scaling.mode auto, with what bounds it: the pods are told nothing of these bounds, since
    their numbers change while none of them runs."""
    counts = {"Chief": 1, "Worker": 2, "PS": 1}
    job = injected(make_tfjob(counts, {"scaling.mode": "auto", **policy}))
    assert job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 2
    plain = injected(make_tfjob(counts))
    for kind in counts:
        found, usual = settings_of(job, kind, 0), settings_of(plain, kind, 0)
        assert found.limits(1) == usual.limits(1)
        assert dataclasses.replace(found, policy=usual.policy) == usual


def test_servers_are_wished_for_where_there_can_be_any():
    """Not of a PyTorchJob."""
    with pytest.raises(errors.PolicyError, match="a PyTorchJob has no parameter servers"):
        injected(make_job(policy={"scaling.ps-max": "2"}))


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"Chief": 1, "Worker": 2, "PS": 1}, r"PS\.replicas is 1; allowed: 2 while the job runs"),
        ({"Chief": 1, "Worker": 2, "PS": 3}, r"PS\.replicas is 3; allowed: 2 while the job runs"),
        ({"Chief": 1, "Worker": 3, "PS": 2}, r"Worker\.replicas is 3; allowed: 2 while the job"),
        ({"Chief": 1, "Worker": 2}, r"PS\.replicas is None; allowed: 2 while the job runs"),
    ],
)
def test_a_running_jobs_size_stays(counts, says):
    """PS scale-in above all, which the operator answers with a failed job; suspended it may."""
    before = make_tfjob({"Chief": 1, "Worker": 2, "PS": 2})
    after = make_tfjob(counts)
    with pytest.raises(errors.ManifestError, match=says):
        TFJOB.check_update(before, after, "job")
    before["spec"]["runPolicy"] = {"suspend": True}
    TFJOB.check_update(before, after, "job")
    TFJOB.check_update(after, after, "job")
