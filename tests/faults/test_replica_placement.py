# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Three pods on two nodes: after the level `replica` any of them may be lost with its memory."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil

import pytest

from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.states.synthetic_states import Form

FORM = Form("sharded", world_size=3)


@pytest.fixture
def uneven_pods(tmp_path):
    """Two pods on the first node, one on the second, no storage."""
    port, network = checkpoint_pod.free_port(), f"127.78.{os.getpid() % 200 + 1}"
    pods = [
        checkpoint_pod.Pod(
            checkpoint_pod.settings_of(
                tmp_path / f"pod-{index}", pod=f"demo-worker-{index}", replica_index=index,
                port=port, address=f"{network}.{index + 1}", coordinator_host=f"{network}.1",
                nodes=3, max_nodes=3, node=node,
            )
        )
        for index, node in enumerate(["node-1", "node-1", "node-2"])
    ]  # fmt: skip
    try:
        for pod in pods:
            pod.start()
        yield pods
    finally:
        for pod in pods:
            pod.kill()


@pytest.mark.parametrize("lost", range(3))
def test_a_lost_pod_comes_back_after_its_replica(uneven_pods, lost):
    """Every rank resumes at the step, with its own bytes."""
    trainers = [Trainer(pod, rank, 3) for rank, pod in enumerate(uneven_pods)]
    for rank, trainer in enumerate(trainers):
        trainer.save(10, FORM.bytes_of(10, 1, rank), replicated=False, pieces=True)
    assert all(trainer.wait(10, "replica").done for trainer in trainers)
    pod = uneven_pods[lost]
    pod.kill()
    shutil.rmtree(pod.settings.volume_path)
    pod.start()
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        restores = [
            threads.submit(trainer.restore, 2, FORM.wanted(rank))
            for rank, trainer in enumerate(trainers)
        ]
        replies = [restore.result() for restore in restores]
    assert [reply.step for reply in replies] == [10, 10, 10]
    for rank, reply in enumerate(replies):
        content = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
        assert FORM.check(content, 10, rank) == 1
