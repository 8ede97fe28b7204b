# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job whose pods no node has room for says so, once each time."""

from __future__ import annotations

from memory_cluster import KEY, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.api.jobs import Pod
from rover_kf.reconcilers import unplaced
from rover_kf.reconcilers.job import Reconcilers

FULL = "0/3 nodes are available: 3 Insufficient cpu."


def waiting(index, since):
    known = {"unplaced": FULL, "unplaced_since": since}
    return Pod(f"digits-worker-{index}", f"uid-{index}", "worker", index, "Pending", **known)


def told(cluster):
    return [event.message for event in cluster.events if event.reason == names.EVENT_NOT_PLACED]


def test_pods_without_a_node_are_told(clock, history):
    """With the scheduler's words, after a time in which a node may come free; anew when others
    begin to wait, or the same again."""
    cluster = MemoryCluster(clock, manifest(5))
    cluster.reachable = False
    cluster.pods = tuple(waiting(index, clock()) for index in range(5))
    reconcilers = Reconcilers(cluster, history, clock=clock)
    assert reconcilers.tick(KEY).delay <= unplaced.PATIENCE_SECONDS
    assert told(cluster) == []
    for _ in range(3):
        clock.now += unplaced.PATIENCE_SECONDS
        reconcilers.tick(KEY)
    (message,) = told(cluster)
    named = "digits-worker-0, digits-worker-1, digits-worker-2 and 2 more"
    assert message.startswith(f"{named}: no node for 10 s: {FULL}")
    cluster.pods = (waiting(0, clock()),)
    clock.now += unplaced.PATIENCE_SECONDS + 1
    reconcilers.tick(KEY)
    assert told(cluster)[1].startswith("digits-worker-0: no node for 11 s")


def test_a_suspended_job_waits_for_nobody(clock, history):
    """Its last pods may still be there."""
    cluster = MemoryCluster(clock, manifest(1, spec={"runPolicy": {"suspend": True}}))
    cluster.pods = (waiting(0, clock() - 60),)
    Reconcilers(cluster, history, clock=clock).tick(KEY)
    assert told(cluster) == []
