# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one process knows of all its jobs, asked by several threads."""

from __future__ import annotations

import threading

from rover_kf.reconcilers.board import Board


class SlowCluster:
    """Its nodes are read only once somebody lets them."""

    def __init__(self):
        self.readings, self.begun, self.may = 0, threading.Event(), threading.Event()

    def list_nodes(self):
        self.readings += 1
        self.begun.set()
        assert self.may.wait(20)
        return ()

    def every_pod(self):
        return iter(())


def test_one_thread_at_a_time_reads_the_cluster():
    """At the start the others wait for it; later they go by what was read last."""
    cluster = SlowCluster()
    board, found = Board(cluster), []
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
