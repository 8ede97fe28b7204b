# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A check that one job cannot decide is decided beside the checks of others in the history."""

from __future__ import annotations

import dataclasses

import pytest
from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import (
    NodeCheckReport,
    PairMeasurement,
    PodMeasurement,
)
from rover_kf.api.jobs import Pod
from rover_kf.elastic.node_check.verdict import CheckEvidence, pod_verdicts
from rover_kf.injection import node_affinity
from rover_kf.reconcilers.reconciler import Reconciler


def check(at, *pairs):
    """Pods of those nodes, each pair with its seconds."""
    nodes = sorted({node for pair in pairs for node in pair[:2]})
    pods = tuple(PodMeasurement(f"digits-worker-{n}", f"n{n}", "cpu", 0.01) for n in nodes)
    met = tuple(
        PairMeasurement(f"digits-worker-{one}", f"digits-worker-{other}", seconds)
        for one, other, seconds in pairs
    )
    return NodeCheckReport(at, 1.0, pods, met, pod_verdicts(CheckEvidence(pods, met)))


class Checked(MemoryCluster):
    """A job of two pods that were checked."""

    def __init__(self, clock, given, found):
        super().__init__(clock, given)
        self.found = found
        self.pods = tuple(
            Pod(f"digits-worker-{n}", f"uid-{n}", "worker", n, "Running", node=f"n{n}")
            for n in (0, 1)
        )

    def delete_pod(self, _, name):
        self._point("delete")
        self.pods = tuple(
            dataclasses.replace(pod, deleting=True) if pod.name == name else pod
            for pod in self.pods
        )

    def _status(self, after):
        return dataclasses.replace(super()._status(after), preflight=self.found)


def a_run(clock, history, uid, found):
    cluster = Checked(clock, manifest(), found)
    cluster.uid = uid
    Reconciler(cluster, history, clock=clock).run_once(KEY)


@pytest.mark.parametrize("mode", ["report", "exclude"])
def test_history_tells_which_of_two_it_is(clock, history, mode):
    """Node 1 was slow with node 7, too, which is well with others: it is told, and left out if the
    policy says so; once each, and never the other."""
    a_run(clock, history, "before-1", check(9_000.0, (5, 6, 0.02), (7, 8, 0.02), (5, 8, 0.02)))
    a_run(clock, history, "before-2", check(9_100.0, (1, 7, 0.2)))
    given = manifest(annotations={f"{names.PREFIX}preflight.mode": mode})
    cluster = Checked(clock, given, check(9_900.0, (0, 1, 0.2)))
    assert {one.verdict for one in cluster.found.verdicts} == {"ok"}
    for _ in range(3):
        Reconciler(cluster, history, clock=clock).run_once(KEY)
        clock.now += 10
    (message,) = [
        one.message for one in cluster.events if one.reason == names.EVENT_NODE_CHECK_FAILED
    ]
    assert message.startswith("digits-worker-1 on n1 is slow, as other jobs show: all-reduce with")
    template = cluster.manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert node_affinity.excluded_nodes(template) == ({"n1"} if mode == "exclude" else set())
    assert [pod.name for pod in cluster.pods if pod.deleting] == (
        ["digits-worker-1"] if mode == "exclude" else []
    )
    record = history.get("uid-1")
    assert record
    assert record.preflights == (cluster.found,)


def test_a_check_is_kept_of_a_job_that_is_deleted_at_once(clock, history):
    """Before the run's record was to be written the next time."""
    cluster = Checked(clock, manifest(), None)
    reconcilers = Reconciler(cluster, history, clock=clock)
    reconcilers.run_once(KEY)
    cluster.found = check(clock.now, (0, 1, 0.2))
    clock.now += 1
    reconcilers.run_once(KEY)
    assert history.get("uid-1").preflights == ()
    cluster.manifest = None
    reconcilers.run_once(KEY)
    record = history.get("uid-1")
    assert (record.outcome, record.preflights) == ("deleted", (cluster.found,))
