# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sharded state on a real cluster when pods are lost with their memory."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from testcluster import jobs, objects, training_operator
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

SAFE = 20
_ONE_A_NODE = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {
            "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "digits"}},
            "topologyKey": "kubernetes.io/hostname",
        }
    ]
}


@pytest.fixture
def start(cluster, namespace, with_trainer, shared_claim):
    """Starts FSDP2 training by two pods on two nodes, others than the one to avoid if possible; or
    by three that keep a parity."""
    shared_claim(jobs.CLAIM)

    def begin(avoided: str = "", *, parity: bool = False) -> RunningJob:
        manifest = jobs.digits(namespace)
        manifest["metadata"]["annotations"] |= {
            "rover-kf.io/checkpoint.persist-seconds": "0",
            "rover-kf.io/scaling.mode": "off",
        }
        if parity:
            manifest["metadata"]["annotations"]["rover-kf.io/checkpoint.parity-group"] = "3"
            manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["command"] = ["torchrun", "/tools/sharded.py"]
        pod["affinity"] = {"podAntiAffinity": _ONE_A_NODE, "nodeAffinity": _rather_not(avoided)}
        apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, manifest["metadata"]["name"])

    return begin


def _rather_not(node: str) -> dict:
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    preference = {"matchExpressions": [other]}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": preference}
        ]
    }


def _safe(job: RunningJob, pods: int = 2) -> dict[str, str]:
    """Digests of the pods' pieces once all of them are safe in peers' memory and on storage."""

    def told() -> dict[str, str]:
        lines = {pod: job.traces(pod, "safe") for pod in job.pods()}
        return {pod: found[0][1] for pod, found in lines.items() if found}

    return eventually(lambda: len(told()) == pods and told(), within=180, every=0.5, what="safe")


@pytest.mark.parametrize(
    ("lost", "source"),
    [(("worker-1",), "peer"), (("worker-0",), "parity"), (("worker-0", "worker-1"), "storage")],
    ids=["a pod", "the first pod of three", "both"],
)
def test_a_lost_pods_pieces_come_back(faults, start, hurry, lost, source):
    """A pod that is deleted at once is replaced, and the new one has the lost one's very bits: from
    its partner's memory, from the parity that three keep, which costs half as much, or from storage
    where the partner is lost as well. The story tells it."""
    parity = source == "parity"
    job = start(parity=parity)
    digests = _safe(job, 3 if parity else 2)
    pods = [f"{job.name}-{name}" for name in lost]
    before = {pod: job.pods()[pod]["metadata"]["uid"] for pod in pods}
    for pod in pods:
        # Even a forced deletion begins with SIGTERM, and whoever heeds it saves a later step.
        faults.kill(job.namespace, pod, container="pytorch", number=signal.SIGSTOP)
    _delete_at_once(job, pods)
    for pod in pods:
        assert _restored(job, pod, before[pod]) == (SAFE, digests[pod], source)
    _ends_well(job, source, hurry)


def test_a_lost_nodes_pieces_come_back(cluster, controller, start, hurry, node_faults):
    """A node loses power and its pod is given up: the new pod, on another node, has its bits from
    the partner's memory."""
    # The operator has to live to make a new pod, the controller to tell of it.
    needed = {
        pod["spec"]["nodeName"]
        for namespace in (training_operator.NAMESPACE, controller)
        for pod in objects.get(cluster, namespace, "pods")["items"]
    }
    job = start(avoided=min(needed))
    digests = _safe(job)
    nodes = {name: pod["spec"]["nodeName"] for name, pod in job.pods().items()}
    victim = next(name for name in sorted(nodes, reverse=True) if nodes[name] not in needed)
    before, node = job.pods()[victim]["metadata"]["uid"], nodes[victim]
    with node_faults.node_stopped(node):
        eventually(lambda: node not in cluster.ready_nodes(), within=90, what=f"{node} NotReady")
        _delete_at_once(job, [victim])
        assert _restored(job, victim, before) == (SAFE, digests[victim], "peer")
        assert job.pods()[victim]["spec"]["nodeName"] not in nodes.values()
        _ends_well(job, "peer", hurry)


def _delete_at_once(job: RunningJob, pods: list[str]) -> None:
    at_once = ("--grace-period=0", "--force", "--wait=false")
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", *pods, *at_once)


def _restored(job: RunningJob, pod: str, before: str) -> tuple[int, str, str]:
    """Step, digest and source of what the pod that took the place of another started from."""

    def told() -> list[tuple[int, str, str]]:
        uid = job.pods().get(pod, {}).get("metadata", {}).get("uid")
        return job.traces(pod, "restored") if uid not in (None, before) else []

    return eventually(told, within=180, every=0.5, what=f"{pod} is replaced and restores")[0]


def _ends_well(job: RunningJob, source: str, hurry: Callable[[], None]) -> None:
    wanted = f"resumes at step {SAFE} from {source}"

    def told() -> list[str]:
        events = [event for event in job.events() if event["reason"] == "CheckpointRestored"]
        return [event["message"] for event in events if wanted in event["message"]]

    eventually(told, within=240, every=0.3, what=f"an event that a rank {wanted}")
    hurry()
    assert eventually(job.verdict, within=240, every=0.5, what="the job's end") == "Succeeded"
