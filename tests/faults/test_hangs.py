# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A world that stands still, for real: who did not arrive is told with its stack; it goes on."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf.api import names
from tests.support.pods.launcher_pods import Job, show

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

FLOOR = 6.0
"""Seconds; steps take a hundredth of a second, but the machine may be busy."""

STANDING = '''
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
rank, long, step = dist.get_rank(), float(sys.argv[1]), 0

def once(number, name):
    """Whether this is that step, for the first time in the job."""
    mark = pathlib.Path(f"{name}-{rank}")
    first = step == number and not mark.exists()
    if first:
        mark.touch()
    return first

class Slow:
    """An entry of the state that takes long to save, once."""
    def state_dict(self):
        if once(15, "saves"):
            time.sleep(long)
        return {}
    def load_state_dict(self, found):
        pass

def lost_in_data():
    while True:
        time.sleep(0.01)

model = torch.nn.Linear(4, 4)
state = {"model": torch.nn.parallel.DistributedDataParallel(model), "slow": Slow()}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
sys.stdout.write(f"rank {rank} begins at {step}\\n")
if once(0, "begins"):
    time.sleep(long)
while step < 50:
    step += 1
    if rank == 1 and once(23, "loops"):
        lost_in_data()
    if rank == 1 and once(33, "is stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))
    checkpointer.step(step, state, total_steps=50)
    if once(10, "evaluates"):
        model.eval()
        time.sleep(long)
        model.train()
    if rank == 1 and once(41, "dies"):
        model.eval()
        time.sleep(1)  # it is told
        os.kill(os.getpid(), signal.SIGKILL)
checkpointer.close()
dist.destroy_process_group()
'''


def test_hangs():
    """A rank that loops for ever, one that is stopped: each time the Event names it and where it
    stands, all stacks are in the status, and the job goes on from memory. A long first step,
    evaluation and save before are no hang, nor is what a killed process was at."""
    policy = {"hang.min-seconds": str(FLOOR), "hang.pause-min-seconds": "60"}
    with Job(2, min_nodes=2, policy=policy) as job:
        job.start(job.script(STANDING), str(1.2 * FLOOR))
        assert [pod.wait() for pod in job.pods.values()] == [0, 0]
        status = job.status()
        told = [event for event in status.events if event.reason == names.EVENT_HANG]
        show("told", [event.message for event in told])
        looped, stopped = told
        assert "after step 22" in looped.message
        assert "rank 1 (train-worker-1) did not arrive: stands in lost_in_data (train.py:" in (
            looped.message
        )
        assert "rank 0 (train-worker-0) waits in all_reduce (distributed_c10d.py:" in looped.message
        assert "rank 1 (train-worker-1) did not arrive and gives no stack [T (stopped)]" in (
            stopped.message
        )
        first, second = status.hangs
        assert [group.ranks for group in first.stacks] == [(1,), (0,)]
        assert (first.step, first.restarted) == (22, True)
        assert "lost_in_data" in first.stacks[0].text
        assert "all_reduce" in first.stacks[1].text
        assert (second.step, second.restarted) == (32, True)
        show("found after", [round(hang.seconds, 2) for hang in status.hangs])
        assert all(FLOOR <= hang.seconds < 3 * FLOOR for hang in status.hangs)
        assert (status.step, status.durable_step) == (50, 50)
        assert status.restarts >= 3
        spent = status.goodput
        show("spent", dataclasses.asdict(spent))
        assert spent.total == pytest.approx(status.now - status.account_from, abs=1e-5)
        assert spent.recovery > sum(hang.seconds for hang in status.hangs)
        assert min(spent.rendezvous, spent.redone, spent.productive) > 0
        starts = [line for line in job.pods[1].text().splitlines() if " begins at " in line]
        show("starts", starts)
        assert {f"rank 1 begins at {step}" for step in (0, 20, 30, 40)} <= set(starts)
