# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node on which a real job cannot train: named, left out of the job, its pod made elsewhere; and
one that is lost with the controller on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from testcluster import deployment, jobs, objects, training_operator
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api import names
from rover_kf.injection import node_affinity
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

VICTIM = "digits-worker-1"


def _manifest(namespace: str) -> dict:
    """Two workers, no fewer, that know their nodes; their size does not change."""
    job = jobs.digits(namespace, "--samples-per-second", "150", traced=False)
    job["metadata"]["annotations"] |= {"rover-kf.io/scaling.mode": "off"}
    job["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 2}
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    program, *given = container["command"]
    container["command"] = [program, "/tools/breaking.py", *given]
    node = {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}
    container["env"] = [{"name": "NODE_NAME", "valueFrom": node}]
    return job


def _node_of(job: RunningJob, pod: str) -> str:
    found = job.pods().get(pod, {})
    return found.get("spec", {}).get("nodeName", "")


def _template(job: RunningJob) -> dict:
    return job.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def test_a_broken_node_is_left_out(cluster, namespace, with_trainer, checkpoints, hurry):
    """Its GPU falls off the bus: the Event names node and pod, the job's templates leave the node
    out, the pod comes back on another one, and the job goes on and succeeds."""
    job = with_trainer(_manifest(namespace), scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    apply(cluster, [job])
    job = RunningJob(cluster, namespace, job["metadata"]["name"])
    eventually(lambda: (job.status().get("sealed_step") or 0) >= 20, within=240, every=0.3)
    bad = _node_of(job, VICTIM)
    (checkpoints / "bad-node").write_text(bad)
    (message,) = eventually(
        lambda: job.told(names.EVENT_NODE_AVOIDED), within=60, every=0.3, what="told"
    )
    assert message.startswith(f"{bad} is left out of this job")
    assert "gpu_hardware" in message
    assert node_affinity.excluded_nodes(_template(job)) == {bad}

    def elsewhere() -> str:
        found = {_node_of(job, pod) for pod in job.pods()}
        return found if "" not in found and bad not in found else ""

    nodes = eventually(elsewhere, within=90, every=0.5, what=f"no pod on {bad}")
    print(f"\n{bad} was left out: {nodes}")
    hurry()
    assert eventually(job.verdict, within=240, every=0.5, what="the end") == "Succeeded"


@pytest.fixture
def controllers_node(cluster, controller) -> Iterator[str]:
    """The controller's node; the operator, who makes new pods, is on another one."""

    def nodes_of(namespace: str) -> set[str]:
        pods = objects.get(cluster, namespace, "pods")["items"]
        return {pod["spec"]["nodeName"] for pod in pods}

    operators = nodes_of(training_operator.NAMESPACE)
    if nodes_of(controller) & operators:
        try:
            cluster.kubectl("cordon", *operators)
            deployment.scale(cluster, 0)
            deployment.scale(cluster, 1)
        finally:
            cluster.kubectl("uncordon", *operators)
    (node,) = nodes_of(controller)
    yield node
    deployment.wait(cluster)


@pytest.fixture
def spread(cluster, namespace, with_trainer) -> RunningJob:
    """Three workers, on a node each, that train slowly; with two the job goes on as well."""
    made = jobs.digits(namespace, "--steps", "2000", "--samples-per-second", "300", traced=False)
    made["metadata"]["annotations"] |= {"rover-kf.io/scaling.mode": "off"}
    name = made["metadata"]["name"]
    workers = made["spec"]["pytorchReplicaSpecs"]["Worker"]
    apart = objects.apart("training.kubeflow.org/job-name", name)
    workers["replicas"] = 3
    workers["template"]["spec"]["affinity"] = apart
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    return RunningJob(cluster, namespace, name)


@pytest.mark.at_length
@pytest.mark.usefixtures("checkpoints")
def test_the_controllers_own_node_is_lost(spread, controllers_node, node_faults, hurry):
    """A worker's node loses power, and the controller is on it: another controller is made, removes
    the lost pod, and the job has its whole world again, long before the five minutes for which
    Kubernetes leaves a silent node's pods there."""
    job = spread
    eventually(lambda: (job.status().get("sealed_step") or 0) >= 20, within=240, every=0.3)
    pods = job.pods()
    (lost,) = (name for name in pods if _node_of(job, name) == controllers_node)
    uid, began = pods[lost]["metadata"]["uid"], time.monotonic()
    with node_faults.node_stopped(controllers_node):

        def whole() -> bool:
            new = job.pods().get(lost, {}).get("metadata", {}).get("uid") not in (None, uid)
            return new and job.status().get("nodes") == 3

        eventually(whole, within=120, every=0.5, what="the whole world")
        took = time.monotonic() - began
    hurry()
    assert eventually(job.verdict, within=240, every=0.5, what="the end") == "Succeeded"
    (told,) = job.told(names.EVENT_POD_LOST)
    assert lost in told
    print(f"\n{lost} and the controller were lost; three train again {took:.1f} s later")
