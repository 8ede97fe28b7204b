# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one process knows of all its jobs, asked by several threads."""

from __future__ import annotations

import logging
import threading

from rover_kf import errors
from rover_kf.reconcilers.cluster_view import ClusterView


class SlowCluster:
    """Its nodes are read only once somebody lets them."""

    def __init__(self):
        self.readings, self.begun, self.may = 0, threading.Event(), threading.Event()

    def list_nodes(self):
        self.readings += 1
        self.begun.set()
        assert self.may.wait(20)
        return ()

    def list_all_pods(self):
        return iter(())


def test_one_thread_at_a_time_reads_the_cluster():
    """At the start the others wait for it; later they go by what was read last."""
    cluster = SlowCluster()
    board, found = ClusterView(cluster), []
    looks = [threading.Thread(target=lambda: found.append(board._read(100.0))) for _ in range(4)]
    for look in looks:
        look.start()
    assert cluster.begun.wait(20)
    cluster.may.set()
    for look in looks:
        look.join(20)
    assert (cluster.readings, len(found)) == (1, 4)
    assert [reading.nodes for reading in found] == [()] * 4

    cluster.may.clear()
    cluster.begun.clear()
    late = threading.Thread(target=board._read, args=(500.0,))
    late.start()
    assert cluster.begun.wait(20)
    assert board._read(500.0) is found[0]
    cluster.may.set()
    late.join(20)
    assert (cluster.readings, late.is_alive()) == (2, False)


class ClosedCluster(SlowCluster):
    """Its nodes may not be read, until they may."""

    closed = True

    def list_nodes(self):
        if self.closed:
            raise errors.InputError("nodes is forbidden")
        return ()


def test_nodes_that_may_not_be_read_are_logged_once(caplog):
    """Not at every look; again once they could be read and cannot any more."""
    cluster = ClosedCluster()
    board = ClusterView(cluster)
    with caplog.at_level(logging.INFO):
        readings = [board._read(1000.0 * look) for look in range(1, 5)]
        assert {reading.unread for reading in readings} == {
            "room on nodes is not looked at: nodes is forbidden"
        }
        assert len(caplog.messages) == 1
        assert "jobs grow without regard to it" in caplog.messages[0]
        cluster.closed = False
        assert board._read(9000.0).unread == ""
        cluster.closed = True
        board._read(19000.0)
    assert len(caplog.messages) == 2
