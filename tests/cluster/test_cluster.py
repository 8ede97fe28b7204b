# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the other cluster tests stand on: the cluster itself, its faults, stock training on it."""

from __future__ import annotations

import pathlib
import signal

import pytest
from testcluster import objects
from testcluster.commands import run
from testcluster.errors import ClusterError, CommandFailed
from testcluster.objects import apply

from tests.support.waiting import eventually

SCRIPTS = pathlib.Path(__file__).parent / "scripts"


def _answers(cluster, namespace: str, source: str, address: str) -> bool:
    connect = ["nc", "-w", "2", address, "8080"]
    try:
        cluster.kubectl("-n", namespace, "exec", source, "--", *connect, timeout=30)
    except CommandFailed:
        return False
    return True


def _reaches(cluster, namespace: str, source: str, address: str) -> None:
    """Wait until it is answered: what runs in a pod that is ready need not listen yet."""
    what = f"an answer of {address} to {source}"
    eventually(lambda: _answers(cluster, namespace, source, address), within=60, what=what)


def _address(cluster, namespace: str, pod: str) -> str:
    def ready() -> str:
        found = objects.get(cluster, namespace, "pod", pod)
        return found["status"].get("podIP", "") if objects.pod_ready(found) else ""

    return eventually(ready, within=120, what=f"pod {pod} ready")


def _serve(namespace: str, name: str, node: str) -> dict:
    return objects.toolbox(name, namespace, ["httpd", "-f", "-p", "8080", "-h", "/bin"], node=node)


def test_nodes_are_ready_and_the_operator_serves(cluster):
    """Every node is Ready; the operator's own webhook refuses a job without its container."""
    nodes = objects.get(cluster, "default", "nodes")["items"]
    assert nodes
    assert all(objects.pod_ready(node) for node in nodes)
    wrong = objects.pytorchjob("wrong", "default", ["true"])
    wrong["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = (
        "other"
    )
    with pytest.raises(CommandFailed, match="pytorch"):
        apply(cluster, [wrong])


def test_stock_training_succeeds(cluster, namespace, with_trainer):
    """torchrun in an unlabelled job of two workers meets, reduces and succeeds, restricted."""
    command = ["torchrun", "/scripts/hello.py"]
    job = objects.pytorchjob("hello", namespace, command, elastic=(2, 2))
    job["spec"]["elasticPolicy"]["rdzvConf"] = [{"key": "last_call_timeout", "value": "1"}]
    job["spec"]["nprocPerNode"] = "1"
    apply(cluster, [with_trainer(job, scripts=SCRIPTS)])

    def ended() -> set[str]:
        return objects.job_conditions(objects.get(cluster, namespace, "pytorchjob", "hello")) & {
            "Succeeded",
            "Failed",
        }

    assert eventually(ended, within=240, what="the job's end") == {"Succeeded"}
    output = cluster.kubectl("-n", namespace, "logs", "hello-worker-0", "-c", "pytorch")
    assert "of 2: sum 3" in output


def test_partition_cuts_pods_of_two_nodes_and_heals(cluster, namespace, node_faults):
    """Inside a partition pods of two nodes are apart, a third reaches both; after it all do."""
    first, second, third = (node.name for node in cluster.nodes[:3])
    places = {"left": first, "right": second, "other": third}
    apply(cluster, [_serve(namespace, name, node) for name, node in places.items()])
    address = {name: _address(cluster, namespace, name) for name in places}
    _reaches(cluster, namespace, "left", address["right"])
    with node_faults.partitioned(second, peers=[first]):
        assert not _answers(cluster, namespace, "left", address["right"])
        assert not _answers(cluster, namespace, "right", address["left"])
        _reaches(cluster, namespace, "other", address["right"])
    _reaches(cluster, namespace, "left", address["right"])


def test_packets_are_lost_and_the_loss_ends(cluster, namespace, node_faults):
    """With all packets to a peer lost nothing answers; with a tenth lost TCP still delivers."""
    first, second = (node.name for node in cluster.nodes[:2])
    apply(cluster, [_serve(namespace, "near", first), _serve(namespace, "far", second)])
    _address(cluster, namespace, "near")
    far = _address(cluster, namespace, "far")
    _reaches(cluster, namespace, "near", far)
    with node_faults.lossy(second, 1.0, peers=[first]):
        assert not _answers(cluster, namespace, "near", far)
    with node_faults.lossy(second, 0.1, peers=[first]):
        _reaches(cluster, namespace, "near", far)
        rules = run(
            ["nsenter", f"--net=/run/netns/{second}", "iptables", "-t", "raw", "-S", "RKF-IN"]
        )
        assert "--probability 0.1" in rules
    _reaches(cluster, namespace, "near", far)


def test_a_process_in_a_pod_dies_by_signal(cluster, namespace, faults, toolbox_image):
    """SIGKILL ends that process of the pod; the kubelet starts the container again."""
    command = ["sh", "-c", "sleep 100000 & sleep 99999; exit 1"]
    apply(cluster, [objects.toolbox("victim", namespace, command, image=toolbox_image)])
    _address(cluster, namespace, "victim")
    eventually(lambda: len(faults.processes(namespace, "victim", matching="^sleep")) == 2)
    with pytest.raises(ClusterError, match="no 1 processes like 'python'"):
        faults.kill(namespace, "victim", matching="python")
    faults.kill(namespace, "victim", matching="^sleep 99999", number=signal.SIGKILL)

    def restarts() -> int:
        return objects.get(cluster, namespace, "pod", "victim")["status"]["containerStatuses"][0][
            "restartCount"
        ]

    eventually(lambda: restarts() >= 1, within=60)


def test_a_node_loses_power_and_comes_back(cluster, namespace, faults, node_faults):
    """A stopped node becomes NotReady, its pods' processes end; started again it runs them."""
    last = cluster.nodes[-1].name
    apply(cluster, [_serve(namespace, "there", last)])
    _address(cluster, namespace, "there")
    with node_faults.node_stopped(last):
        eventually(lambda: last not in cluster.ready_nodes(), within=90, what=f"{last} NotReady")
        assert not faults.processes(namespace, "there")
    assert last in cluster.ready_nodes()

    def running_again() -> bool:
        found = objects.get(cluster, namespace, "pod", "there")
        return (
            objects.pod_ready(found)
            and found["status"]["containerStatuses"][0]["restartCount"] >= 1
        )

    eventually(running_again, within=120, what="the pod on the node that came back")
