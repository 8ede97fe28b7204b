# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sharded state on a real cluster when pods are lost with their memory."""

from __future__ import annotations

import pytest
from testcluster import jobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

SAFE = 20


@pytest.fixture
def job(cluster, namespace, with_trainer, shared_claim) -> RunningJob:
    """FSDP2 training by two pods, running."""
    shared_claim(jobs.CLAIM)
    manifest = jobs.digits(namespace)
    manifest["metadata"]["annotations"] |= {
        "rover-kf.io/checkpoint.persist-seconds": "0",
        "rover-kf.io/scaling.mode": "off",
    }
    pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["command"] = ["torchrun", "/tools/sharded.py"]
    apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    return RunningJob(cluster, namespace, manifest["metadata"]["name"])


def _safe(job: RunningJob) -> dict[str, str]:
    """Digests of the pods' pieces once all of them are safe in peers' memory and on storage."""

    def told() -> dict[str, str]:
        lines = {pod: job.traces(pod, "safe") for pod in job.pods()}
        return {pod: found[0][1] for pod, found in lines.items() if found}

    return eventually(lambda: len(told()) == 2 and told(), within=180, every=0.5, what="safe")


@pytest.mark.parametrize(
    ("lost", "source"),
    [(("worker-1",), "peer"), (("worker-0",), "peer"), (("worker-0", "worker-1"), "storage")],
    ids=["a pod", "the first pod", "both"],
)
def test_a_lost_pods_pieces_come_back(cluster, job, lost, source):
    """A pod that is deleted at once is replaced, and the new one has the lost one's very bits: from
    its partner's memory, or from storage where the partner is lost as well. The story tells it."""
    digests = _safe(job)
    pods = [f"{job.name}-{name}" for name in lost]
    before = {pod: job.pods()[pod]["metadata"]["uid"] for pod in pods}
    cluster.kubectl(
        "-n", job.namespace, "delete", "pod", *pods, "--grace-period=0", "--force", "--wait=false"
    )
    for pod in pods:
        step, digest, came_from = eventually(
            lambda pod=pod: (
                job.pods().get(pod, {}).get("metadata", {}).get("uid") not in (None, before[pod])
                and job.traces(pod, "restored")
            ),
            within=180, every=0.5, what=f"{pod} is replaced and restores",
        )[0]  # fmt: skip
        assert (step, came_from) == (SAFE, source)
        assert digest == digests[pod]
    assert eventually(job.verdict, within=240, every=1, what="the job's end") == "Succeeded"
    told = eventually(
        lambda: [e["message"] for e in job.events() if e["reason"] == "CheckpointRestored"],
        within=60, what="the restore is told",
    )  # fmt: skip
    assert any(f"resumes at step {SAFE} from {source}" in message for message in told)
