# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sharded state on a real cluster when pods are lost with their memory."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping

import pytest
from testcluster import jobs, objects, training_operator
from testcluster.errors import ClusterError
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.system import tls
from tests.support.tls.authority import Authority
from tests.support.waiting import eventually

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
    DDP by two ranks in each of two pods."""
    shared_claim(jobs.CLAIM)

    def begin(
        avoided: str = "",
        *,
        ddp: bool = False,
        fewest: int = 2,
        policy: Mapping[str, str] | None = None,
    ) -> RunningJob:
        manifest = jobs.digits(namespace)
        manifest["metadata"]["annotations"] |= policy or {}
        manifest["metadata"]["annotations"] |= {
            "rover-kf.io/checkpoint.persist-seconds": "0",
            "rover-kf.io/scaling.mode": "off",
        }
        manifest["spec"]["elasticPolicy"]["minReplicas"] = fewest
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["command"] = ["torchrun", "/tools/sharded.py", *["ddp"] * ddp]
        manifest["spec"]["nprocPerNode"] = "2" if ddp else "1"
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


def _safe(job: RunningJob) -> dict[str, str]:
    """Digests of the pods' pieces once all of them are safe in peers' memory and on storage."""

    def told() -> dict[str, str]:
        lines = {pod: job.traces(pod, "safe") for pod in job.pods()}
        return {pod: found[0][1] for pod, found in lines.items() if found}

    return eventually(lambda: len(told()) == 2 and told(), within=180, every=0.5, what="safe")


@pytest.mark.parametrize(
    ("lost", "source"),
    [(("worker-1",), "peer"), (("worker-0", "worker-1"), "storage")],
    ids=["a pod", "both"],
)
def test_a_lost_pods_pieces_come_back(faults, start, hurry, lost, source):
    """A pod that is deleted at once is replaced, and the new one has the lost one's very bits: from
    its partner's memory, or from storage where the partner is lost as well. The story tells it."""
    job = start()
    digests = _safe(job)
    pods = [f"{job.name}-{name}" for name in lost]
    before = {pod: job.pods()[pod]["metadata"]["uid"] for pod in pods}
    for pod in pods:
        # Even a forced deletion begins with SIGTERM, and whoever heeds it saves a later step.
        faults.kill(job.namespace, pod, container="pytorch", number=signal.SIGSTOP)
    _delete_at_once(job, pods)
    for pod in pods:
        assert _restored(job, pod, before[pod]) == (SAFE, digests[pod], source)
    _ends_well(job, source, hurry)


def test_a_pod_that_is_told_to_end_gives_its_pieces(start, hurry):
    """A pod is deleted as `kubectl delete pod` does: the other one, alone, goes on from the step
    that both saved for it, out of the memory of the one that ends, and no process fails for it."""
    job = start(fewest=1)
    _safe(job)
    stays, leaves = (f"{job.name}-worker-{index}" for index in range(2))
    slow = lambda: [line for line in job.traces(stays, "stepped") if line[0] >= SAFE + 3]  # noqa: E731 - of one line
    eventually(slow, within=60, every=0.3, what="steps at the pace by which the world drains")
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", leaves, "--wait=false")

    def later() -> list[tuple[int, str, str]]:
        return [line for line in job.traces(stays, "restored") if line[0] > SAFE]

    (step, _, source), *_ = eventually(later, within=120, every=0.5, what="it restores alone")
    assert source == "peer"
    before = [line[0] for line in job.traces(stays, "stepped") if line[0] <= step]
    assert max(before) == step - 1, "who drains leaves with its step, before it tells of it"
    hurry()
    assert eventually(job.verdict, within=240, every=0.5, what="the job's end") == "Succeeded"
    assert job.told("TrainingProcessFailed") == []


@pytest.fixture
def authority(cluster, controller, namespace):
    """Whose certificate the namespace has in a Secret, and the controller takes."""
    made = Authority()
    metadata = {"name": "rover-kf-sidecar-ca", "namespace": controller}
    told = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    apply(cluster, [told | {"data": {"ca.crt": made.pem}}, _certificate(made, namespace)])
    # The kubelet brings it to the controller at once where the pod's object changes.
    mine = ("-l", "app.kubernetes.io/component=controller", f"test/look={namespace}")
    cluster.kubectl("-n", controller, "annotate", "pod", "--overwrite", *mine)
    yield made
    cluster.kubectl("-n", controller, "delete", "configmap", metadata["name"])


def test_a_lost_pods_pieces_come_back_by_tls(cluster, faults, start, authority, hurry):
    """The same where sidecars encrypt, with a certificate that was exchanged meanwhile: both pods
    show the new one without a restart, the replacement has its bits from its partner's memory, the
    controller reads the story of it, and who asks without TLS is refused."""
    job = start(policy={"rover-kf.io/tls.secret": "sidecars"})
    digests = _safe(job)
    pods = sorted(job.pods())
    first = {pod: _end_of_certificate(job, pod) for pod in pods}
    with pytest.raises(ClusterError):
        cluster.get_raw(f"{_pod(job, pods[0])}:7411/proxy/healthz")
    apply(cluster, [_certificate(authority, job.namespace, days=2)])
    # A kubelet looks once a minute, and at once where the pod's object changes.
    cluster.kubectl("-n", job.namespace, "annotate", "pod", *pods, "test/look=now")
    eventually(
        lambda: all(_end_of_certificate(job, pod) > first[pod] + 3600 for pod in pods),
        within=180,
        every=1.0,
        what="both show the new certificate",
    )
    assert [_restarts(job, pod) for pod in pods] == [0, 0]
    lost = pods[1]
    before = job.pods()[lost]["metadata"]["uid"]
    faults.kill(job.namespace, lost, container="pytorch", number=signal.SIGSTOP)
    _delete_at_once(job, [lost])
    assert _restored(job, lost, before) == (SAFE, digests[lost], "peer")
    _ends_well(job, "peer", hurry)


def _certificate(authority: Authority, namespace: str, days: float = 1.0) -> dict:
    """A Secret as cert-manager writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "sidecars", "namespace": namespace},
        "stringData": authority.secret(tls.server_name(namespace), ends=days * 86400),
    }


def _pod(job: RunningJob, name: str, scheme: str = "") -> str:
    return f"/api/v1/namespaces/{job.namespace}/pods/{scheme}{name}"


def _end_of_certificate(job: RunningJob, pod: str) -> float:
    """As its sidecar tells of it, by TLS."""
    path = f"{_pod(job, pod, 'https:')}:7411/proxy/metrics"
    found = re.search(r"certificate_end_seconds{.*} (.*)", job.cluster.get_raw(path).decode())
    assert found
    end = float(found[1])
    assert end > time.time()
    return end


def _restarts(job: RunningJob, pod: str) -> int:
    states = job.pods()[pod]["status"]["initContainerStatuses"]
    return sum(one["restartCount"] for one in states if one["name"] == "rover-sidecar")


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


def test_a_lost_pods_ranks_come_back_from_the_other_pod(faults, start, hurry):
    """DDP by two ranks a pod: both ranks of the pod that takes a lost one's place have the very
    bits, from the other pod's memory."""
    job = start(ddp=True)
    digests = _safe(job)
    assert len(set(digests.values())) == 1
    lost = f"{job.name}-worker-1"
    before = job.pods()[lost]["metadata"]["uid"]
    faults.kill(job.namespace, lost, container="pytorch", number=signal.SIGSTOP)
    _delete_at_once(job, [lost])
    assert _restored(job, lost, before) == (SAFE, digests[lost], "peer")
    both = eventually(
        lambda: len(found := job.traces(lost, "restored")) == 2 and found, within=60, every=0.5
    )
    assert both == [(SAFE, digests[lost], "peer")] * 2
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
