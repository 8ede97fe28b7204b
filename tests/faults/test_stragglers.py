# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank that is slow by itself, under DistributedDataParallel, for real."""

from __future__ import annotations

import pytest

from rover_kf.api import names
from rover_kf.elastic import stragglers
from tests.support.pods.launcher_pods import Job, show

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SLOW = """
import time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
state = {"model": model}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
while step < 220:
    step += 1
    time.sleep(0.06 if rank == 1 else 0.01)
    model(torch.ones(4, 8)).sum().backward()
    model.zero_grad()
    checkpointer.step(step, state, total_steps=220)
checkpointer.close()
dist.destroy_process_group()
"""


def test_the_slow_rank_is_told():
    """All ranks take the same time a step, and only one of them is why: it is named with its pod
    and node, once, and nobody else is."""
    with Job(2, min_nodes=2, policy={names.ENV_NODE_NAME: "node-7"}) as job:
        job.start(job.script(SLOW))
        assert [pod.wait() for pod in job.pods.values()] == [0, 0]
        status = job.status()
        events = status.events
        told = [event.message for event in events if event.reason == names.EVENT_STRAGGLER]
        show("told", told)
        (message,) = told
        assert message.startswith("rank 1 in train-worker-1 on node-7 takes 0.0")
        assert "in 3 of the last 4 windows of 50 steps" in message
        (slow,) = status.stragglers  # what a controller may replace
        assert (slow.pod, slow.node, slow.rank) == ("train-worker-1", "node-7", 1)
        assert slow.ratio > stragglers.RATIO
        assert status.started_at < slow.since <= status.now
