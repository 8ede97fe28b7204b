# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a real cluster's pods in a real bucket, with a Secret's credentials."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
from collections.abc import Iterator

import pytest
from testcluster import jobs, network
from testcluster.errors import ClusterError
from testcluster.foreign import ForeignCluster
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from tests.support.servers.object_server import ObjectServer, object_server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("controller")]

SECRET, SAFE = "bucket-key", 40


@pytest.fixture
def bucket(cluster, namespace, tmp_path) -> Iterator[ObjectServer]:
    """A server that the nodes reach, and a Secret of the namespace with its credentials."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip("the pods of --kubeconfig do not reach an S3 server of this machine")
    with object_server(tmp_path / "s3", address=network.GATEWAY) as server:
        metadata = {"name": SECRET, "namespace": namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        apply(cluster, [{**secret, "stringData": server.environment}])
        yield server


@pytest.fixture
def start(cluster, namespace, with_trainer):
    """Starts the digits job of two pods, which mount no storage at all."""

    def begin(*options: str) -> RunningJob:
        manifest = jobs.digits(namespace, *options)
        annotations = manifest["metadata"]["annotations"]
        annotations["rover-kf.io/checkpoint.path"] = "s3://checkpoints/runs"
        annotations["rover-kf.io/checkpoint.secret"] = SECRET
        annotations["rover-kf.io/checkpoint.persist-seconds"] = "0"
        annotations["rover-kf.io/scaling.mode"] = "off"
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        del pod["volumes"], pod["containers"][0]["volumeMounts"]
        apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, manifest["metadata"]["name"])

    return begin


@pytest.mark.at_length
def test_a_bucket_outlives_every_pod_and_nobody_shows_its_key(faults, start, bucket):
    """All pods are lost at once and the job is deleted; one of the same name goes on from the
    bucket, bit by bit. No annotation, argument, log or Event of either shows the Secret's key."""
    first = start("--steps", "5000")
    pods = eventually(lambda: _durable(first) and first.pods(), within=300, every=0.5, what="safe")
    assert len(pods) == 2
    _shows_nothing(first, bucket)
    for pod in pods:
        # Even a forced deletion begins with SIGTERM, and whoever heeds it saves a later step.
        faults.kill(first.namespace, pod, container="pytorch", number=signal.SIGSTOP)
    stepped = _digests(first)
    _delete(first)
    stored = {int(path.parent.name.split("-")[1]) for path in _manifests(bucket)}
    assert max(stored) >= SAFE

    second = start("--steps", str(max(stored) + 10))
    pod = f"{second.name}-worker-0"
    ((step, digest, source), *_) = eventually(
        lambda: second.traces(pod, "restored"), within=300, every=0.5, what="the restore"
    )
    assert (step, source) == (max(stored), "storage")
    assert stepped[step] == digest
    print(f"resumed at step {step} of {sorted(stored)}, bit by bit")
    assert eventually(second.verdict, within=300, every=0.5, what="its end") == "Succeeded"
    _shows_nothing(second, bucket)


def _durable(job: RunningJob) -> bool:
    return (job.status().get("durable_step") or 0) >= SAFE


def _digests(job: RunningJob) -> dict[int, str]:
    return {step: digest for step, digest, _ in job.traces(f"{job.name}-worker-0", "saved")}


def _manifests(server: ObjectServer) -> list[pathlib.Path]:
    return list((server.bucket / "runs").glob("*/step-*/manifest.json"))


def _delete(job: RunningJob) -> None:
    pods = list(job.pods())
    job.cluster.kubectl("-n", job.namespace, "delete", "pytorchjob", job.name, "--wait=false")
    at_once = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", *pods, *at_once)
    eventually(lambda: not job.pods(), within=60, what="all pods are gone")


def _shows_nothing(job: RunningJob, server: ObjectServer) -> None:
    told = [json.dumps(job.read()), json.dumps(job.events()), *_arguments()]
    for name, pod in job.pods().items():
        told.append(json.dumps(pod))
        spec = pod["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        told += [_log(job, name, container["name"]) for container in containers]
    sidecars = [text for text in told if "serves on" in text]
    assert len(sidecars) == len(job.pods())
    for text in told:
        assert server.key not in text
        assert server.secret not in text


def _log(job: RunningJob, pod: str, container: str) -> str:
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}/log?container={container}"
    with contextlib.suppress(ClusterError):
        return job.cluster.get_raw(path).decode(errors="replace")
    return ""


def _arguments() -> Iterator[str]:
    """Of every process of the machine, those of all nodes among them."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")
