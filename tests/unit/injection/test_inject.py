# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What inject() writes into a job."""

from __future__ import annotations

import copy
import json

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from rover_kf.injection.inject import inject, is_injected, remove
from rover_kf.injection.patch_diff import diff
from rover_kf.injection.settings import InjectionSettings
from rover_kf.sidecar import settings as sidecar_settings
from tests.support.jobs.job_manifests import (
    container_of,
    environment_of,
    make_job,
    pod_of,
    policy_of,
    three_way_patch,
    trainer_of,
)

SETTINGS = InjectionSettings("rover-kf-sidecar:1", controller_account="rover-kf-system:controller")
CHECKPOINTS = {"name": "ckpt", "mountPath": "/ckpt", "subPath": "team"}


def injected(job, **options):
    return inject(job, settings=SETTINGS, **options).manifest


def test_the_sidecar_is_told_everything_it_reads():
    """The sidecar's own settings module reads the written environment, given the pod's fields."""
    job = make_job(
        workers=3,
        masters=1,
        elastic=(2, 5),
        mount=CHECKPOINTS,
        policy={"checkpoint.path": "/ckpt/run", "checkpoint.every": "20", "scaling.window": "5s"},
    )
    variables = environment_of(container_of(injected(job), names.SIDECAR_CONTAINER))
    fields = {
        "metadata.namespace": "team",
        "metadata.name": "digits-worker-1",
        "metadata.uid": "u",
        "status.podIP": "10.0.0.1",
        f"metadata.labels['{names.REPLICA_TYPE_LABEL}']": "worker",
        f"metadata.labels['{names.REPLICA_INDEX_LABEL}']": "1",
    }
    found = sidecar_settings.read({k: fields.get(v, v) for k, v in variables.items()})
    assert (found.job, found.namespace, found.coordinator_host) == (
        "digits",
        "team",
        "digits-master-0",
    )
    assert (found.nodes, found.min_nodes, found.max_nodes, found.masters) == (4, 3, 6, 1)
    assert (found.node_rank, found.is_coordinator) == (2, False)
    assert (found.policy.checkpoint.path, found.policy.checkpoint.every) == ("/ckpt/run", 20)
    assert found.policy.checkpoint.keep == 3
    assert (found.arena_bytes, found.policy.scaling.window) == (512 << 20, 5.0)
    assert (found.auth, str(found.token_home)) == ("serviceaccount", "/var/run/rover")
    assert found.controller_account == "rover-kf-system:controller"
    assert str(found.volume_path) == "/rover"


def test_the_sidecar_knows_its_owner_and_whose_checkpoints_it_adopts():
    """Two jobs of one name in two namespaces are two owners."""
    job = make_job(policy={"checkpoint.adopt-from": "team-a/train"})
    variables = environment_of(container_of(injected(job), names.SIDECAR_CONTAINER))
    variables |= {names.ENV_REPLICA_INDEX: "0", names.ENV_NAMESPACE: "team-b"}
    found = sidecar_settings.read(variables)
    assert (found.owner, found.policy.checkpoint.adopt_from) == (
        f"team-b/{found.job}",
        "team-a/train",
    )


def test_the_sidecar_knows_which_checkpoints_to_spare():
    """As the policy says; nothing is spared without it, and a wrong variable is named."""
    rules = {"checkpoint.keep-every": "100", "checkpoint.keep-best": "accuracy:max:2"}
    job = make_job(policy=rules)
    variables = environment_of(container_of(injected(job), names.SIDECAR_CONTAINER))
    variables[names.ENV_REPLICA_INDEX] = "0"  # the pod's own label says so
    found = sidecar_settings.read(variables)
    assert found.retention_exceptions == RetentionExceptions(
        100, KeepBest("accuracy", highest=True, count=2)
    )
    del variables[names.ENV_POLICY]
    assert sidecar_settings.read(variables).retention_exceptions == RetentionExceptions()
    wrong = '{"checkpoint": {"keep_best": "x"}}'
    with pytest.raises(errors.InputError, match=r"ROVER_POLICY: .*checkpoint\.keep-best is 'x'"):
        sidecar_settings.read(variables | {names.ENV_POLICY: wrong})


@pytest.mark.parametrize(
    ("rules", "caps"),
    [
        ({}, (512 << 20, 0)),
        ({"checkpoint.bandwidth": "0"}, (0, 0)),
        ({"checkpoint.bandwidth": "1Gi"}, (1 << 30, 0)),
        ({"checkpoint.replica-bandwidth": "100Mi"}, (512 << 20, 100 << 20)),
        ({"checkpoint.replica-bandwidth": "0"}, (512 << 20, 0)),
    ],
)
def test_the_sidecar_knows_the_caps_on_its_network(rules, caps):
    """Each cap is what its own annotation says; none is stated, none is set."""
    variables = environment_of(
        container_of(injected(make_job(policy=rules)), names.SIDECAR_CONTAINER)
    )
    variables[names.ENV_REPLICA_INDEX] = "0"  # the pod's own label says so
    found = sidecar_settings.read(variables)
    assert (found.policy.checkpoint.bandwidth, found.policy.checkpoint.replica_bandwidth) == caps


@pytest.mark.parametrize(
    ("rules", "saves"), [({}, 10), ({"checkpoint.verify-replicas-every": "0"}, 0)]
)
def test_the_sidecar_knows_how_often_replicas_are_compared(rules, saves):
    """Every tenth save if nothing is said; 0 reaches it as 0."""
    variables = environment_of(
        container_of(injected(make_job(policy=rules)), names.SIDECAR_CONTAINER)
    )
    variables[names.ENV_REPLICA_INDEX] = "0"  # the pod's own label says so
    assert sidecar_settings.read(variables).policy.checkpoint.verify_replicas_every == saves


def test_without_a_master_the_first_worker_coordinates():
    """Worker-only jobs name worker 0; a job without checkpoint path keeps them in memory."""
    variables = environment_of(container_of(injected(make_job()), names.SIDECAR_CONTAINER))
    assert variables[names.ENV_COORDINATOR] == "digits-worker-0"
    assert (variables[names.ENV_MIN_NODES], variables[names.ENV_MAX_NODES]) == ("2", "2")
    assert policy_of(variables).checkpoint.path is None


def test_a_generated_name_is_read_from_the_pod():
    """With generateName the job's name is not known at admission: the pod's label says it, and the
    coordinator's name refers to that variable, which stands before it."""
    job = make_job()
    job["metadata"]["generateName"] = job["metadata"].pop("name") + "-"
    sidecar = container_of(injected(job), names.SIDECAR_CONTAINER)
    variables = environment_of(sidecar)
    assert variables[names.ENV_JOB] == f"metadata.labels['{names.JOB_NAME_LABEL}']"
    assert variables[names.ENV_COORDINATOR] == "$(ROVER_JOB)-worker-0"
    order = [item["name"] for item in sidecar["env"]]
    assert order.index(names.ENV_JOB) < order.index(names.ENV_COORDINATOR)
    created = injected(job)
    created["metadata"]["name"] = "digits-x7k2p"
    assert injected(created)["spec"] == created["spec"]


def test_the_sidecar_starts_first_and_fits_the_restricted_profile():
    """Our init containers come before the user's, and both are non-root, read-only and bare."""
    job = make_job()
    pod_of(job)["initContainers"] = [{"name": "fetch", "image": "busybox"}]
    done = injected(job)
    found = [item["name"] for item in pod_of(done)["initContainers"]]
    assert found == [names.RUNTIME_CONTAINER, names.SIDECAR_CONTAINER, "fetch"]
    sidecar = container_of(done, names.SIDECAR_CONTAINER)
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"] == ["python", "-m", "rover_kf.sidecar"]
    assert not {"livenessProbe", "startupProbe"} & sidecar.keys()
    runtime = container_of(done, names.RUNTIME_CONTAINER)
    assert runtime["command"] == ["python", "-m", "rover_kf.sidecar.runtime", "/rover/runtime"]
    assert "restartPolicy" not in runtime
    for container in (runtime, sidecar):
        assert container["image"] == "rover-kf-sidecar:1"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_the_arena_is_charged_to_the_sidecar():
    """Half of the trainer's memory is the arena; the volume and the sidecar's limit hold it."""
    done = injected(make_job(memory="4Gi"))
    sidecar = container_of(done, names.SIDECAR_CONTAINER)
    assert sidecar["resources"] == {
        "limits": {"memory": "2240Mi"},
        "requests": {"cpu": "50m", "memory": "2240Mi"},
    }
    volume = next(item for item in pod_of(done)["volumes"] if item["name"] == names.VOLUME)
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "2112Mi"}
    assert environment_of(sidecar)[names.ENV_ARENA_BYTES] == str(2 << 30)
    assert trainer_of(done)["resources"] == {"limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    ("memory", "policy", "arena"),
    [(None, {}, 1 << 30), ("3Gi", {"checkpoint.arena": "512Mi"}, 512 << 20), ("1", {}, 1 << 20)],
)
def test_the_arenas_size(memory, policy, arena):
    """The annotation wins; without any memory stated it is 1 GiB; it is never below 1 MiB."""
    done = injected(make_job(memory=memory, policy=policy))
    variables = environment_of(container_of(done, names.SIDECAR_CONTAINER))
    assert variables[names.ENV_ARENA_BYTES] == str(arena)


def test_a_guaranteed_pod_stays_guaranteed():
    """Where all limits equal requests, the added containers have a CPU limit as well."""
    job = make_job()
    trainer_of(job)["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}}
    for name in (names.RUNTIME_CONTAINER, names.SIDECAR_CONTAINER):
        resources = container_of(injected(job), name)["resources"]
        assert resources["limits"] == resources["requests"]
        assert resources["limits"]["cpu"] == "500m"


def test_the_token_is_the_sidecars_alone():
    """The projected tokens are mounted in the sidecar and nowhere else."""
    done = injected(make_job())
    (volume,) = [item for item in pod_of(done)["volumes"] if item["name"] == names.TOKEN_VOLUME]
    assert volume["projected"]["sources"] == [
        {
            "serviceAccountToken": {
                "audience": "rover-kf",
                "expirationSeconds": 3600,
                "path": "token",
            }
        },
        {"serviceAccountToken": {"expirationSeconds": 3600, "path": "api-token"}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
    ]
    mounted = {
        container["name"]: [mount["mountPath"] for mount in container["volumeMounts"]]
        for container in (*pod_of(done)["initContainers"], *pod_of(done)["containers"])
    }
    assert mounted == {
        names.RUNTIME_CONTAINER: ["/rover"],
        names.SIDECAR_CONTAINER: ["/rover", "/var/run/rover"],
        "pytorch": ["/rover"],
    }


def test_the_sidecar_gets_the_trainers_storage():
    """The innermost mount that holds the path is mounted alike, and its group may write it."""
    inner = {"name": "inner", "mountPath": "/ckpt/run/"}
    job = make_job(mount=CHECKPOINTS, policy={"checkpoint.path": "/ckpt/run/a"})
    trainer_of(job)["volumeMounts"].append(inner)
    done = injected(job)
    assert container_of(done, names.SIDECAR_CONTAINER)["volumeMounts"][-1] == inner
    assert pod_of(done)["securityContext"] == {
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    assert "securityContext" not in pod_of(injected(make_job()))


def test_the_sidecar_is_the_trainers_user():
    """A user or group that the manifest states, container before pod, is the sidecar's too."""
    job = make_job(mount=CHECKPOINTS, policy={"checkpoint.path": "/ckpt"})
    pod_of(job)["securityContext"] = {"runAsUser": 1000, "runAsGroup": 100, "fsGroup": 7}
    context = container_of(injected(job), names.SIDECAR_CONTAINER)["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (1000, 100)
    assert pod_of(injected(job))["securityContext"]["fsGroup"] == 7
    trainer_of(job)["securityContext"] = {"runAsUser": 0}
    context = container_of(injected(job), names.SIDECAR_CONTAINER)["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_trainer_starts_rover_run():
    """Command, environment and mount of the trainer; the original is in the annotation."""
    job = make_job(command=["torchrun", "train.py"], masters=1)
    trainer_of(job)["env"] = [{"name": "MINE", "value": "1"}]
    done = injected(job)
    trainer = trainer_of(done)
    assert trainer["command"] == ["/bin/sh", "/rover/runtime/rover-run", "train.py"]
    assert environment_of(trainer) == {
        "MINE": "1",
        "ROVER_HOME": "/rover",
        "ROVER_CHECKPOINT_EVERY": "50",
    }
    assert trainer_of(done, "Master")["command"] == trainer["command"]
    original = {"command": ["torchrun", "train.py"]}
    annotations = done["metadata"]["annotations"]
    assert json.loads(annotations[names.ORIGINAL_COMMAND_ANNOTATION]) == {
        "Master": original,
        "Worker": original,
    }
    assert names.NOT_REWRITTEN_ANNOTATION not in annotations
    assert is_injected(done)


def test_a_shell_string_keeps_its_command():
    """It gets the runtime on its path and a warning that says what is missing."""
    job = make_job(command=["sh", "-c", "torchrun train.py"])
    trainer_of(job)["env"] = [{"name": "PYTHONPATH", "value": "/app"}]
    done = inject(job, settings=SETTINGS)
    trainer = trainer_of(done.manifest)
    assert trainer["command"] == ["sh", "-c", "torchrun train.py"]
    assert environment_of(trainer)["PYTHONPATH"] == "/rover/runtime:/app"
    (warning,) = done.warnings
    assert (warning.reason, warning.warning) == (names.EVENT_NOT_REWRITTEN, True)
    assert "neither torchrun nor python" in warning.message
    note = done.manifest["metadata"]["annotations"][names.NOT_REWRITTEN_ANNOTATION]
    assert "neither torchrun nor python" in json.loads(note)["Worker"]
    assert remove(done.manifest)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] == (
        pod_of(job)
    )


def test_a_python_path_that_comes_from_elsewhere_is_left():
    """A value from a ConfigMap cannot be prefixed and is not overwritten."""
    job = make_job(command=["sh", "-c", "x"])
    variable = {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    trainer_of(job)["env"] = [variable]
    assert trainer_of(injected(job))["env"][0] == variable


def test_never_becomes_exit_code():
    """Under Never a lost pod fails the job; ExitCode keeps failing scripts final. It is told."""
    job = make_job()
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["restartPolicy"] = "Never"
    done = inject(job, settings=SETTINGS)
    assert done.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert "Never became ExitCode" in done.warnings[0].message
    trainer_of(job)["command"] = ["sh", "-c", "x"]
    assert injected(job)["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
    for policy in ("OnFailure", "Always", "ExitCode"):
        worker["restartPolicy"] = policy
        assert injected(job)["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == policy


def test_lifecycle_fields():
    """Replicas are written out, a short grace period is raised, the gang may start with min."""
    job = make_job(elastic=(1, 4))
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    del worker["replicas"]
    pod_of(job)["terminationGracePeriodSeconds"] = 5
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "q", "minAvailable": 4}}
    done = injected(job)
    assert done["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert pod_of(done)["terminationGracePeriodSeconds"] == 30
    assert done["spec"]["runPolicy"] == {"schedulingPolicy": {"queue": "q", "minAvailable": 1}}
    pod_of(job)["terminationGracePeriodSeconds"] = 120
    assert pod_of(injected(job))["terminationGracePeriodSeconds"] == 120
    assert "terminationGracePeriodSeconds" not in pod_of(injected(make_job()))
    assert "runPolicy" not in injected(make_job())["spec"]


def test_grace_follows_the_arena():
    """A slot of 4 GiB takes 43 s at 100 MB/s: with drain and end the pod gets a minute."""
    job = make_job(memory="16Gi")
    done = injected(job)
    assert pod_of(done)["terminationGracePeriodSeconds"] == 12 + 43 + 5
    assert environment_of(trainer_of(done))[names.ENV_GRACE] == "60"
    assert injected(done) == done
    small = injected(make_job())
    assert names.ENV_GRACE not in environment_of(trainer_of(small))


def test_a_mesh_leaves_our_port_alone():
    """The port joins ports that are excluded already; the user's other annotations stay."""
    job = make_job()
    inbound, outbound = (
        f"traffic.sidecar.istio.io/exclude{way}Ports" for way in ("Inbound", "Outbound")
    )
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["metadata"] = {"annotations": {inbound: "8080, 9090", "a": "b"}}
    metadata = injected(job)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]
    assert metadata["annotations"] == {inbound: "8080,9090,7411", outbound: "7411", "a": "b"}


@pytest.mark.parametrize("scaled", [2, 3])
@pytest.mark.parametrize(
    "job",
    [
        make_job(
            elastic=(2, 3),
            mount=CHECKPOINTS,
            policy={"checkpoint.path": "/ckpt", "checkpoint.every": "20"},
        ),
        make_job(elastic=(2, 3), command=["python"], args=["-u", "train.py"]),
        make_job(elastic=(2, 3), command=["sh", "-c", "torchrun train.py"]),
    ],
)
def test_applying_the_users_file_again_changes_nothing(job, scaled):
    """After kubectl apply of the unchanged file, re-injection gives the very same object."""
    stored = injected(job)
    stored["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = scaled
    stored = injected(stored)
    again = three_way_patch(job, job, stored)
    again["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = scaled
    assert names.ENV_HOME not in environment_of(trainer_of(again))
    assert injected(again) == stored


def test_an_edited_file_takes_effect():
    """After apply of a file with another command, that one is rewritten and recorded."""
    job = make_job(command=["torchrun", "old.py"])
    edited = make_job(command=["torchrun", "new.py"], policy={"checkpoint.every": "9"})
    again = injected(three_way_patch(job, edited, injected(job)))
    assert trainer_of(again)["command"][-1] == "new.py"
    assert "new.py" in again["metadata"]["annotations"][names.ORIGINAL_COMMAND_ANNOTATION]
    assert environment_of(trainer_of(again))[names.ENV_CHECKPOINT_EVERY] == "9"
    shell = make_job(command=["sh", "-c", "x"])
    stays = injected(three_way_patch(job, shell, injected(job)))
    annotations = stays["metadata"]["annotations"]
    assert names.ORIGINAL_COMMAND_ANNOTATION not in annotations
    assert names.NOT_REWRITTEN_ANNOTATION in annotations


def test_a_checkpoint_path_without_mount_is_for_embedded_runs():
    """allow_unmounted accepts it and mounts nothing."""
    job = make_job(policy={"checkpoint.path": "/somewhere"})
    with pytest.raises(errors.ManifestError, match="a mount that holds /somewhere"):
        injected(job)
    done = injected(job, allow_unmounted=True)
    sidecar = container_of(done, names.SIDECAR_CONTAINER)
    assert policy_of(environment_of(sidecar)).checkpoint.path == "/somewhere"
    assert len(sidecar["volumeMounts"]) == 2


@pytest.mark.parametrize("path", ["s3://bucket/a/b", "gs://bucket", "az://container/x/"])
def test_a_bucket_needs_no_mount_and_its_secret_is_the_sidecars_alone(path):
    """The URL is told as it is; the Secret is named in one container, its content nowhere."""
    wishes = {"path": path, "secret": "bucket-key", "bandwidth": "1Gi"}
    job = make_job(policy={f"checkpoint.{key}": value for key, value in wishes.items()})
    done = injected(job)
    sidecar = container_of(done, names.SIDECAR_CONTAINER)
    found = environment_of(sidecar)
    assert policy_of(found).checkpoint.path == path
    assert policy_of(found).checkpoint.bandwidth == 1 << 30
    assert sidecar["envFrom"] == [{"secretRef": {"name": "bucket-key"}}]
    assert json.dumps(done).count("secretRef") == 1
    mount = {"name": names.KEY_VOLUME, "mountPath": names.KEY_HOME, "readOnly": True}
    assert sidecar["volumeMounts"][2:] == [mount]
    assert found[names.ENV_KEY_HOME] == names.KEY_HOME
    assert json.dumps(done).count(names.KEY_HOME) == 2
    # What is not there is told by the container's environment; a volume's wait is not told.
    volume = {"name": names.KEY_VOLUME, "secret": {"secretName": "bucket-key", "optional": True}}
    assert pod_of(done)["volumes"][-1] == volume
    assert injected(done) == done
    assert "envFrom" not in container_of(injected(make_job()), names.SIDECAR_CONTAINER)


def test_nothing_is_mounted_for_a_bucket_without_a_secret_or_a_folder_with_one():
    """The pod's own account is used, or no account at all; a Secret that is not named any more is
    taken away again."""
    for policy in ({"path": "s3://bucket/a"}, {"secret": "bucket-key"}):
        done = injected(make_job(policy={f"checkpoint.{key}": policy[key] for key in policy}))
        assert names.KEY_VOLUME not in json.dumps(done)
        assert names.ENV_KEY_HOME not in json.dumps(done)
    job = make_job(policy={"checkpoint.path": "s3://bucket/a", "checkpoint.secret": "bucket-key"})
    done = injected(job)
    del done["metadata"]["annotations"]["rover-kf.io/checkpoint.secret"]
    assert names.KEY_VOLUME not in json.dumps(injected(done))


@pytest.mark.parametrize("kind", ["emptyDir", "ephemeral"])
def test_storage_that_ends_with_its_pod_is_told(kind):
    """Checkpoints on a volume of the pod's own are allowed with a warning."""
    job = make_job(mount=CHECKPOINTS, volume={kind: {}}, policy={"checkpoint.path": "/ckpt"})
    (warning,) = inject(job, settings=SETTINGS).warnings
    assert (warning.reason, warning.warning) == (names.EVENT_CHECKPOINT_WARNING, True)
    assert f"of type {kind}, which ends with its pod" in warning.message


def test_the_difference_is_readable():
    """A unified diff of YAML with the file's name, empty for equal manifests, without anchors."""
    job = make_job()
    before = copy.deepcopy(job)
    text = diff(job, injected(job), source="job.yaml")
    assert job == before
    assert text.startswith("--- job.yaml\n+++ job.yaml (with rover-kf)\n")
    assert "+            - /rover/runtime/rover-run\n" in text
    assert "&id" not in text
    assert diff(job, before) == ""
    done = injected(job)
    assert diff(done, injected(done)) == ""


def test_grace_goes_by_what_storage_takes():
    """A figure of the job's own shortens or lengthens it; which one it was is told."""
    policy = {"checkpoint.path": "/ckpt/run"}
    job = make_job(memory="16Gi", mount=CHECKPOINTS, policy=policy)
    assumed = inject(job, settings=SETTINGS)
    assert pod_of(assumed.manifest)["terminationGracePeriodSeconds"] == 60
    (note,) = assumed.notes
    assert "60 s to end, for a snapshot of up to 4096 MiB at 100 MB/s (assumed" in note
    for stated, seconds in (("30Mi", 12 + 137 + 5), ("1Mi", 600), ("10Gi", None)):
        job["metadata"]["annotations"][names.PREFIX + "checkpoint.storage-bandwidth"] = stated
        done = inject(job, settings=SETTINGS)
        assert pod_of(done.manifest).get("terminationGracePeriodSeconds") == seconds
        assert "checkpoint.storage-bandwidth)" in done.notes[0]
        assert inject(done.manifest, settings=SETTINGS).manifest == done.manifest


def test_a_certificate_is_the_sidecars_alone():
    """As the Secret has it, with more authorities beside; the port's name says how to speak. It is
    taken away again when it is not named any more, and written again it is the same."""
    policy = {"tls.secret": "pods", "tls.authorities": "bundle"}
    done = injected(make_job(policy=policy))
    sidecar = container_of(done, names.SIDECAR_CONTAINER)
    mount = {"name": "rover-tls", "mountPath": "/var/run/rover-tls", "readOnly": True}
    assert sidecar["volumeMounts"][2:] == [mount]
    assert json.dumps(done).count("rover-tls") == json.dumps(sidecar).count("rover-tls") + 1
    assert environment_of(sidecar)[names.ENV_TLS_HOME] == "/var/run/rover-tls"
    assert [port["name"] for port in sidecar["ports"]] == ["rover-tls"]
    volume = pod_of(done)["volumes"][-1]
    files = {
        (kind, part["name"], item["key"], item["path"], part.get("optional", False))
        for source in volume["projected"]["sources"]
        for kind, part in source.items()
        for item in part["items"]
    }
    assert files == {
        ("secret", "pods", "tls.crt", "tls.crt", False),
        ("secret", "pods", "tls.key", "tls.key", False),
        ("secret", "pods", "ca.crt", "ca.crt", True),
        ("configMap", "bundle", "ca.crt", "more-ca.crt", False),
    }
    assert injected(done) == done
    for key in policy:
        del done["metadata"]["annotations"][f"rover-kf.io/{key}"]
    plain = injected(done)
    assert names.TLS_VOLUME not in json.dumps(plain)
    assert names.ENV_TLS_HOME not in json.dumps(plain)
    assert plain == injected(make_job())


def test_authorities_alone_are_a_mistake():
    """Without a certificate of their own the pods could not encrypt."""
    with pytest.raises(errors.PolicyError, match=r"tls\.authorities .* without .*tls\.secret"):
        injected(make_job(policy={"tls.authorities": "bundle"}))


def test_a_volume_of_the_users_that_bears_our_name_is_refused():
    """It is no certificate of ours."""
    job = make_job(mount={"name": "rover-tls", "mountPath": "/x"})
    with pytest.raises(errors.ManifestError, match="rover-tls"):
        injected(job)
