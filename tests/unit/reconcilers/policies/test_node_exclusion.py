# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node on which training could not go on is left out of the job's templates, and comes back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cluster import KEY, Killed, MemoryCluster, manifest, merge

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.api.status import FaultyNode
from rover_kf.injection import node_affinity
from rover_kf.reconcilers.policies import node_exclusion
from rover_kf.reconcilers.reconciler import Reconciler

OFF = {f"{names.PREFIX}scaling.mode": "off", f"{names.PREFIX}scaling.min": "2"}
STUCK = {"unschedulable": "0/3 nodes are available", "node": "", "phase": "Pending"}


class Cluster(MemoryCluster):
    """Three pods on three nodes; what is deleted is made anew as the template then says."""

    def __init__(self, clock, given=None, free=("n3",)):
        super().__init__(clock, given or manifest(3, annotations=OFF))
        self.unfit, self.free, self.made = (), list(free), 0
        self.pods = tuple(self._pod(index, f"n{index}") for index in range(3))

    def delete_pod(self, _, name):
        self._point("delete")
        (gone,) = (pod for pod in self.pods if pod.name == name)
        out = node_affinity.excluded_nodes(self.template())
        if gone.node:
            self.free.append(gone.node)
        room = [node for node in self.free if node not in out]
        new = self._pod(gone.replica_index, room[0] if room else "")
        if room:
            self.free.remove(room[0])
        self.pods = tuple(new if pod.name == name else pod for pod in self.pods)

    def template(self):
        return self.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]

    def nodes_of_pods(self):
        return [pod.node for pod in self.pods]

    def breaks(self, node, kind="gpu_hardware"):
        self.unfit = (*self.unfit, FaultyNode(node, "digits-worker-1", kind, "gone", self.clock()))

    def _status(self, after):
        return dataclasses.replace(super()._status(after), faulty_nodes=self.unfit)

    def _pod(self, index, node):
        self.made += 1
        stuck = {} if node else {**STUCK, "unschedulable_since": self.clock()}
        name, uid = f"digits-worker-{index}", f"uid-{self.made}"
        return dataclasses.replace(Pod(name, uid, "worker", index, "Running", node=node), **stuck)


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def told(cluster, reason):
    return [event.message for event in cluster.events if event.reason == reason]


def test_an_unfit_node_is_left_out_and_its_pod_replaced(clock, history):
    """Once, on another node, told with node, pod and failure; the others stay where they are."""
    cluster = Cluster(clock)
    cluster.breaks("n1")
    for _ in range(3):
        look(cluster, history)
        clock.now += 10
    assert cluster.nodes_of_pods() == ["n0", "n3", "n2"]
    assert node_affinity.excluded_nodes(cluster.template()) == {"n1"}
    (message,) = told(cluster, names.EVENT_NODE_AVOIDED)
    assert "n1 is left out of this job for 21600 s" in message
    assert "digits-worker-1: gpu_hardware: gone" in message


def test_who_is_told_that_a_node_is_left_out_finds_it_so(clock, history, monkeypatch):
    """A change of the job in between is seen first: nothing is told that was not done."""
    cluster = Cluster(clock)
    emit, out = cluster.emit, []

    def emitted(key, event):
        if event.reason == names.EVENT_NODE_AVOIDED:
            out.append(node_affinity.excluded_nodes(cluster.template()))
        emit(key, event)

    monkeypatch.setattr(cluster, "emit", emitted)
    cluster.breaks("n1")
    look(cluster, history)
    assert out == [{"n1"}]


def test_a_node_comes_back_after_its_time(clock, history):
    """The templates are as they were before; 0 s never leaves one out."""
    given = manifest(3, annotations={**OFF, f"{names.PREFIX}failures.node-avoid": "5m"})
    cluster = Cluster(clock, given)
    before = copy.deepcopy(cluster.template())
    cluster.breaks("n1")
    assert look(cluster, history).delay <= 300
    clock.now += 301
    look(cluster, history)
    assert node_affinity.excluded_nodes(cluster.template()) == set()
    assert cluster.template()["containers"] == before["containers"]
    never = Cluster(
        clock, manifest(3, annotations={**OFF, f"{names.PREFIX}failures.node-avoid": "0"})
    )
    never.breaks("n1")
    look(never, history)
    assert never.nodes_of_pods() == ["n0", "n1", "n2"]


def test_a_job_that_has_no_room_without_it_gets_it_back(clock, history):
    """Fewer pods than its fewest for a minute, and one finds no node: the node may be used again,
    the pod that waited is made anew, and the node is not left out a second time."""
    given = manifest(3, annotations={**OFF, f"{names.PREFIX}scaling.min": "3"})
    cluster = Cluster(clock, given, free=())
    cluster.breaks("n1")
    look(cluster, history)
    assert cluster.nodes_of_pods() == ["n0", "", "n2"]
    for _ in range(12):
        clock.now += 6
        assert look(cluster, history).delay <= node_exclusion.POLL_SECONDS or cluster.pods[1].node
    assert cluster.nodes_of_pods() == ["n0", "n1", "n2"]
    assert cluster.made == 5
    assert node_affinity.excluded_nodes(cluster.template()) == set()
    (message,) = told(cluster, names.EVENT_NODE_AVOIDANCE_ENDED)
    assert message.startswith("n1 may be used again")


def test_a_job_that_has_its_fewest_waits_for_room(clock, history):
    """Two of two needed pods train on: the third waits rather than to go back."""
    cluster = Cluster(clock, free=())
    cluster.breaks("n1")
    for _ in range(30):
        look(cluster, history)
        clock.now += 6
    assert cluster.nodes_of_pods() == ["n0", "", "n2"]
    assert told(cluster, names.EVENT_NODE_AVOIDANCE_ENDED) == []


def test_no_more_than_half_of_the_nodes_are_left_out(clock, history):
    """What breaks everywhere is no node's fault."""
    cluster = Cluster(clock, free=("n3", "n4", "n5"))
    for node in ("n0", "n1", "n2"):
        cluster.breaks(node)
    look(cluster, history)
    assert len(node_affinity.excluded_nodes(cluster.template())) == 1


def test_the_one_node_of_all_pods_is_not_left_out(clock, history):
    """Nor are its pods replaced: nowhere else is anything of the job."""
    cluster = Cluster(clock)
    cluster.pods = tuple(dataclasses.replace(pod, node="n0") for pod in cluster.pods)
    cluster.breaks("n0")
    for _ in range(3):
        clock.now += 5
        look(cluster, history)
    assert node_affinity.excluded_nodes(cluster.template()) == frozenset()
    assert [pod.uid for pod in cluster.pods] == ["uid-1", "uid-2", "uid-3"]


def test_a_pod_that_its_node_refused_goes_elsewhere(clock, history):
    """A refusal of the node counts; a drain, which Kubernetes makes on purpose, does not."""
    cluster = Cluster(clock)
    first, second, third = cluster.pods
    refused = dataclasses.replace(second, phase="Failed", reasons=("UnexpectedAdmissionError",))
    drained = dataclasses.replace(third, reasons=("EvictionByEvictionAPI",))
    cluster.pods = (first, refused, drained)
    look(cluster, history)
    assert node_affinity.excluded_nodes(cluster.template()) == {"n1"}


@pytest.mark.parametrize("may_not", ["", 'nodes "n1" is forbidden'])
def test_a_broken_node_is_cordoned_where_asked(clock, history, may_not):
    """Once, told with how to give it back; where the controller may not, that is told, and the job
    leaves the node out all the same. A node that only refused a pod stays open to others."""
    policy = {**OFF, f"{names.PREFIX}nodes.cordon": "on"}
    cluster = Cluster(clock, manifest(3, annotations=policy), free=("n3", "n4"))
    cluster.may_not = may_not
    cluster.breaks("n1")
    for _ in range(3):
        look(cluster, history)
    refused = dataclasses.replace(cluster.pods[2], phase="Failed", reasons=("OutOfcpu",))
    cluster.pods = (*cluster.pods[:2], refused)
    look(cluster, history)
    assert node_affinity.excluded_nodes(cluster.template()) >= {"n1"}
    if may_not:
        (message,) = told(cluster, names.EVENT_NODE_NOT_CORDONED)
        assert may_not in message
        assert not cluster.cordoned
    else:
        (message,) = told(cluster, names.EVENT_NODE_CORDONED)
        assert message.startswith("n1 is cordoned until `kubectl uncordon n1` (nodes.cordon): ")
        assert cluster.cordoned == {
            "n1": "PyTorchJob team/digits: digits-worker-1: gpu_hardware: gone"
        }


@pytest.mark.parametrize("point", range(1, 7))
def test_a_controller_killed_anywhere_replaces_the_pod_once(point, clock, history):
    """Killed before any write, the next one ends what was begun."""
    cluster = Cluster(clock)
    cluster.breaks("n1")
    cluster.kill_at = point
    for _ in range(4):
        with contextlib.suppress(Killed):
            look(cluster, history)
    assert cluster.nodes_of_pods() == ["n0", "n3", "n2"]
    assert cluster.made == 4
    annotation = cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION]
    assert [one["node"] for one in json.loads(annotation)["excluded_nodes"]] == ["n1"]


expressions = st.lists(
    st.builds(lambda key: {"key": key, "operator": "Exists"}, st.sampled_from("abc")), max_size=2
)
owners_fields = st.lists(
    st.just({"key": "metadata.name", "operator": "In", "values": ["x"]}), max_size=1
)
terms = st.lists(
    st.builds(
        lambda wanted, fields: {
            **({"matchExpressions": wanted} if wanted else {}),
            **({"matchFields": fields} if fields else {}),
        },
        expressions,
        owners_fields,
    ),
    max_size=3,
)
some_nodes = st.sets(st.sampled_from(["n0", "n1", "n2", "n3"]))


@given(required=terms, first=some_nodes, second=some_nodes)
def test_what_the_owner_requires_stays(required, first, second):
    """Nodes left out and taken back in any order leave the owner's own affinity as it was; what is
    left out is what was asked for, in every alternative that matches anything."""
    stated = {node_affinity.REQUIRED: {"nodeSelectorTerms": required}} if required else {}
    pod = {"affinity": {"nodeAffinity": copy.deepcopy(stated), "podAffinity": {}}}
    for out, back in ((first, set()), (second, first - second), (set(), first | second)):
        patch = node_affinity.exclude_nodes(pod, out, readmit=back)
        if patch is not None:
            merge(pod, copy.deepcopy(patch))
        assert node_affinity.exclude_nodes(pod, out, readmit=back) is None
        if any(required) or not required:
            assert node_affinity.excluded_nodes(pod) == out
    assert pod["affinity"]["podAffinity"] == {}
    assert pod["affinity"]["nodeAffinity"] == stated
