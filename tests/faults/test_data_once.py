# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real training on a data set, killed and scaled: each sample once an epoch in what survives.

The state has a count for every sample. It goes back with the checkpoint like a weight does, so
what it says at the end is what the surviving model was trained on.
"""

from __future__ import annotations

import re

import pytest
from pods import Job, kill
from tests_support import eventually

from rover_kf.api import codec, names
from rover_kf.api.status import Acknowledged, ScaleRequest
from rover_kf.sharding.permutation import Permutation

SAMPLES, BATCH = 1000, 32
STEPS = -(-SAMPLES // BATCH)

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import Dataset
from rover_kf import Checkpointer, ElasticDataLoader

class Numbered(Dataset):
    def __len__(self): return int(sys.argv[1])
    def __getitem__(self, index): return index

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
loader = ElasticDataLoader(Numbered(), int(sys.argv[2]), micro_batch_size=7, seed=5, num_workers=1)
counts = torch.zeros(int(sys.argv[1]))
state = {"model": torch.nn.Linear(4, 4), "loader": loader, "counts": counts}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
enough = torch.zeros(1)
while not enough:
    own = torch.zeros_like(counts)
    for indices in loader:
        # The mean's gradient by a sample is one over their number, averaged over the ranks.
        own[indices] += loader.weight / len(indices) / world * int(sys.argv[2])
        if loader.accumulates:
            continue
        dist.all_reduce(own)
        used = own.nonzero().flatten().tolist()
        size = len(used)
        counts += own * size / int(sys.argv[2])
        own = torch.zeros_like(counts)
        step += 1
        time.sleep(0.02)
        if rank == 0:
            sys.stdout.write(f"samples {step} {' '.join(map(str, used))}\\n")
        sys.stdout.write(f"step {step} rank {rank} of {world} pid {os.getpid()} "
                         f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
        sys.stdout.flush()
        checkpointer.step(step, state, samples=size)
    enough += os.path.exists(sys.argv[3])
    dist.broadcast(enough, 0)
if rank == 0:
    print("counts", counts.min().item(), counts.max().item(), "epochs", loader.epoch, "steps", step)
checkpointer.close()
dist.destroy_process_group()
"""
_USED = re.compile(r"^samples (\d+) ([\d ]+)$", re.MULTILINE)
_END = re.compile(r"^counts (\S+) (\S+) epochs (\d+) steps (\d+)$", re.MULTILINE)


def test_each_sample_counts_once_in_the_model_that_survives():
    """2 → 3 → 2 ranks with kills between: every step has the samples that it would have had in one
    process, and every sample stands in the final state once for each epoch."""
    with Job(2, max_nodes=3, restarts=20) as job:
        enough = job.folder / "enough"
        command = (job.script(TRAINING), str(SAMPLES), str(BATCH), str(enough))
        job.start(*command)
        job.stepping(0, 1)
        _kill_one(job, 0)
        again = job.stepping(0, 1, after=_kill_one(job, 1))
        job.add(2, *command)
        assert _scale(job, 3)
        job.stepping(0, 1, 2, after=again)
        later = job.stepping(0, 1, 2, after=_kill_one(job, 2))
        assert _scale(job, 2)
        job.stepping(0, 1, after=later)
        enough.touch()
        assert job.pods[0].wait() == job.pods[1].wait() == 0
        text = job.pods[0].text()
        sizes = {step["of"] for step in job.pods[0].steps()}
        assert sizes == {2, 3}
    for step, used in _USED.findall(text):
        assert sorted(_expected(int(step))) == [int(word) for word in used.split()], step
    ((lowest, highest, epochs, steps),) = _END.findall(text)
    print(f"{len(_USED.findall(text))} steps were done for {steps} that count, {epochs} epochs")
    assert int(steps) == STEPS * int(epochs)
    assert float(lowest) == pytest.approx(int(epochs), rel=1e-4)
    assert float(highest) == pytest.approx(int(epochs), rel=1e-4)


def _expected(step: int) -> list[int]:
    epoch, begin = divmod(step - 1, STEPS)
    order = Permutation(SAMPLES, 5, epoch)
    return [order.at(p) for p in range(begin * BATCH, min((begin + 1) * BATCH, SAMPLES))]


def _kill_one(job: Job, pod: int) -> float:
    """SIGKILL the pod's training process; its last step's time."""
    last = job.pods[pod].steps()[-1]
    kill(last["pid"])
    return last["at"]


def _scale(job: Job, count: int) -> bool:
    eventually(lambda: job.status().step > 0, within=120)
    return codec.loads(Acknowledged, job.ask(names.PATH_SCALE, ScaleRequest(count, "test"))).done
