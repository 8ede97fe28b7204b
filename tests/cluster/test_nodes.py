# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node on which a real job cannot train: named, left out of the job, its pod made elsewhere."""

from __future__ import annotations

import pytest
from testcluster import jobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

from rover_kf.api import names
from rover_kf.reconcilers import affinity

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
    assert affinity.left_out(_template(job)) == {bad}

    def elsewhere() -> str:
        found = {_node_of(job, pod) for pod in job.pods()}
        return found if "" not in found and bad not in found else ""

    nodes = eventually(elsewhere, within=90, every=0.5, what=f"no pod on {bad}")
    print(f"\n{bad} was left out: {nodes}")
    hurry()
    assert eventually(job.verdict, within=240, every=0.5, what="the end") == "Succeeded"
