# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that compute slowly: found before the training, or while it runs, and left."""

from __future__ import annotations

import pathlib
import time

import pytest
from testcluster import jobs, journaled_job, objects, settings
from testcluster.errors import ClusterError
from testcluster.jobs import RunningJob
from testcluster.journaled_job import answer, eventually_told, newest, resumed, trains_with
from testcluster.objects import apply

from rover_kf.injection import node_affinity
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(600), pytest.mark.usefixtures("controller"), pytest.mark.at_length
]  # fmt: skip

POLICY = {
    "rover-kf.io/preflight.mode": "exclude",
    "rover-kf.io/preflight.timeout": "6",
    "rover-kf.io/nodes.cordon": "on",
    "rover-kf.io/straggler.action": "replace",
    "rover-kf.io/straggler.min-seconds": "1",
    "rover-kf.io/straggler.replacements": "1",
}
LOSS = 0.15
"""Of packets between two nodes, either way."""
CORES = 0.1
"""What is left of a processor to a container that is slow. Its input is not limited: a step is as
long as its computing."""


@pytest.fixture
def may_cordon(cluster):
    """The right that the component gives; nodes are given back after the test."""
    component = settings.REPOSITORY / "manifests" / "components" / "cordon" / "rbac.yaml"
    cluster.kubectl("apply", "-f", str(component))
    yield
    for node in cluster.nodes:
        cluster.kubectl("uncordon", node.name)
    cluster.kubectl("delete", "-f", str(component))


@pytest.fixture
def submit(cluster, namespace, with_trainer, toolbox_image):
    """A pod for each of the nodes, each on one of its own to begin with; two could share one."""

    def run(name: str, nodes: list[str]) -> RunningJob:
        unlimited = ("--samples-per-second", "0")
        made = journaled_job.made(namespace, *unlimited, pods=len(nodes), fewest=2)
        made["metadata"]["name"] = name
        made["metadata"]["annotations"] |= POLICY
        pod = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
        pod["affinity"] = {
            "nodeAffinity": {
                node_affinity.REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
            }
        }
        pod["initContainers"] = [_gate(f"{name}-worker-0", toolbox_image)]
        labels = {"matchLabels": {"training.kubeflow.org/job-name": made["metadata"]["name"]}}
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": labels,
            }
        ]
        apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, made["metadata"]["name"])

    return run


def _gate(pod: str, image: str) -> objects.Object:
    """Holds that pod back until the file of its name is there; the check waits for it."""
    script = f'until [ "$HOSTNAME" != {pod} ] || [ -e /checkpoints/{pod} ]; do sleep 0.1; done'
    return {
        "name": "gate",
        "image": image,
        "command": ["sh", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
    }


def _has_torch(pid: int) -> bool:
    try:
        return "libtorch_cpu" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _slow_from_the_start(job: RunningJob, pod: str, faults, node_faults) -> None:
    """Slow a pod as soon as it has loaded torch."""

    def loaded() -> bool:
        try:
            found = faults.processes(job.namespace, pod, container="pytorch")
        except ClusterError:
            return False  # it has not started
        return any(_has_torch(process.pid) for process in found)

    eventually(loaded, within=120, every=0.1, what=f"{pod} has torch")
    node_faults.throttle(job.namespace, pod, container="pytorch", cores=CORES)


def _node(job: RunningJob, pod: str) -> str:
    return job.pods().get(pod, {}).get("spec", {}).get("nodeName", "")


def _replaced(job: RunningJob, pod: str) -> tuple[str, int]:
    """What is told of the replacement, and the last step that was sealed before it."""
    sealed = 0

    def told() -> str:
        nonlocal sealed
        before = job.status().get("sealed_step") or 0
        found = job.told("StragglerReplaced")
        sealed = sealed if found else before
        return "".join(found)

    message = eventually(told, within=120, every=0.3, what=f"{pod} is replaced")
    assert message.startswith(f"{pod} on ")
    return message, sealed


@pytest.mark.usefixtures("may_cordon")
def test_slow_nodes_are_left(cluster, submit, checkpoints, faults, node_faults):
    """The check before the training names the slow one of three nodes: it is left out of the job
    and, as the policy says, cordoned; its pod comes back elsewhere. A pod that becomes slow later
    is replaced, too, and no sealed step is made again."""
    begun = time.monotonic()
    job = submit("slow", nodes=[node.name for node in cluster.nodes])
    pod = f"{job.name}-worker-2"
    _slow_from_the_start(job, pod, faults, node_faults)
    (checkpoints / f"{job.name}-worker-0").touch()
    bad = _node(job, pod)
    unfit = eventually_told(job, "NodeCheckFailed", f"{pod} on {bad} is slow")
    eventually_told(job, "NodeAvoided", f"{bad} is left out of this job")
    eventually_told(job, "NodeCordoned", f"{bad} is cordoned until `kubectl uncordon {bad}`")
    node = objects.get(cluster, "default", "node", bad)
    assert node["spec"]["unschedulable"] is True
    assert pod in node["metadata"]["annotations"]["rover-kf.io/cordoned"]
    worker = job.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert node_affinity.excluded_nodes(worker) == {bad}
    moved = eventually(
        lambda: (found := _node(job, pod)) not in ("", bad) and found,
        within=60, every=0.3, what=f"{pod} on another node",
    )  # fmt: skip
    whole = trains_with(checkpoints, 3)
    print(f"\n{unfit}\n{pod} went from {bad} to {moved}; three train after {whole - begun:.1f} s")

    slow = f"{job.name}-worker-1"
    uid = job.pods()[slow]["metadata"]["uid"]
    at, _ = newest(checkpoints)
    node_faults.throttle(job.namespace, slow, container="pytorch", cores=CORES)
    message, sealed = _replaced(job, slow)
    eventually(
        lambda: slow in (found := job.pods()) and found[slow]["metadata"]["uid"] != uid,
        within=60, every=0.3, what=f"another {slow}",
    )  # fmt: skip
    replaced = time.monotonic()
    trains_with(checkpoints, 3, after=replaced)
    found = [line for line in resumed(checkpoints, at) if line.step]
    assert {line.source for line in found} <= {"memory", "peer"}
    assert all(line.step >= sealed for line in found)
    assert answer(job)["restarts"] == 0
    print(f"{message}\nthree train again {newest(checkpoints)[0] - at:.1f} s after it was slowed")


def test_of_two_nodes_the_history_tells(cluster, submit, checkpoints, node_faults):
    """A job of three finds the node whose network is bad, and is told that its controller may not
    cordon it. A job of two on that node and another cannot tell them apart: what the first one's
    check has left in the history does."""
    bad, other, third = (node.name for node in cluster.nodes)
    with node_faults.lossy(bad, LOSS, peers=[other, third]):
        for name, nodes, told in (
            ("three", [bad, other, third], f" on {bad} is "),
            ("pair", [bad, other], "as other jobs show"),
        ):
            (checkpoints / f"{name}-worker-0").touch()
            job = submit(name, nodes=nodes)
            unfit = eventually_told(job, "NodeCheckFailed", told, within=120)
            assert f" on {bad} is " in unfit
            eventually_told(job, "NodeAvoided", f"{bad} is left out of this job")
            eventually_told(job, "NodeNotCordoned", "the component `cordon` of the manifests")
            print(f"\n{unfit}")
            cluster.kubectl("-n", job.namespace, "delete", "pytorchjob", name, "--wait=false")
