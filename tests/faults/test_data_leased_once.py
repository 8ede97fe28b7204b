# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real training on leased slots, killed and scaled: each sample once an epoch in what survives.

The state has a count for every sample, which goes back with the checkpoint like a weight does.
"""

from __future__ import annotations

import re
import time

from rover_kf.api import codec, names
from rover_kf.api.status import Ack, ScaleRequest
from rover_kf.data_sharding.permutation import Permutation
from tests.support.pods.launcher_pods import Job, kill
from tests.support.waiting import eventually

SAMPLES, BATCH, SHARD = 1500, 8, 50
BAD = 1234
"""A sample that cannot be read."""

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import Dataset
from rover_kf import Checkpointer, ShardedDataset

samples, batch, bad, shard = map(int, sys.argv[1:5])

class Numbered(Dataset):
    def __len__(self): return samples
    def __getitem__(self, index):
        if index == bad: raise OSError(f"sample {index} is damaged")
        return index

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = ShardedDataset(Numbered(), shard_size=shard, epochs=10**6, seed=5)
loader = data.loader(batch, num_workers=1)
counts = torch.zeros(samples, dtype=torch.float64)
torch.manual_seed(0)
state = {"model": torch.nn.Linear(4, 4), "data": data, "counts": counts}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
enough = torch.zeros(1)
while not enough:
    for indices in loader:
        own = torch.zeros_like(counts)
        # The mean's gradient by a sample is one over their number, averaged over the ranks.
        own[indices] += loader.weight / len(indices) / world
        dist.all_reduce(own)
        used = own.count_nonzero().item()
        counts += own * used
        step += 1
        time.sleep(0.01 if rank else 0.002)
        sys.stdout.write(f"step {step} rank {rank} of {world} pid {os.getpid()} "
                         f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
        sys.stdout.flush()
        checkpointer.step(step, state, samples=len(indices) if loader.weight else 0)
    enough += os.path.exists(sys.argv[5])
    dist.broadcast(enough, 0)
if rank == 0:
    each = enumerate(counts.tolist())
    wrong = [(i, round(n, 6)) for i, n in each if abs(n - data.epoch) > 1e-6]
    print("epochs", data.epoch, "steps", step, "wrong", *(f"{i}:{n}" for i, n in wrong))
checkpointer.close()
data.close()
dist.destroy_process_group()
"""
_END = re.compile(r"^epochs (\d+) steps (\d+) wrong (.*)$", re.MULTILINE)


def test_each_sample_counts_once_in_the_model_that_survives():
    """2 → 3 → 2 ranks with kills between, of training processes and of the coordinator: every
    sample stands in the final state once for each epoch, but for those set aside by name."""
    with Job(2, max_nodes=3, restarts=20) as job:
        enough = job.folder / "enough"
        numbers = map(str, (SAMPLES, BATCH, BAD, SHARD))
        command = (job.script(TRAINING), *numbers, str(enough))
        job.start(*command)
        job.stepping(0, 1)
        again = job.stepping(0, 1, after=_kill_one(job, 0))
        assert job.pods[0].sidecar is not None
        job.pods[0].sidecar.kill()
        job.pods[0].sidecar.wait()
        job.pods[0].start_sidecar()
        job.stepping(0, 1, after=time.time())
        job.add(2, *command)
        eventually(lambda: _scale(job, 3), within=60)
        job.stepping(0, 1, 2, after=again)
        later = job.stepping(0, 1, 2, after=_kill_one(job, 2))
        told = job.status().data[0]
        print(told)
        assert (told.name, told.slots) == ("train", SAMPLES)
        assert told.done + told.outstanding + told.poisoned > 0
        assert _scale(job, 2)
        job.stepping(0, 1, after=later)
        enough.touch()
        assert job.pods[0].wait() == job.pods[1].wait() == 0
        text = job.pods[0].text()
        sizes = {step["of"] for step in job.pods[0].steps()}
    assert sizes == {2, 3}
    ((ended, steps, wrong),) = _END.findall(text)
    print(f"{steps} steps, {ended} epochs, counts of {wrong} differ")
    epochs = int(ended)
    counts = {int(i): float(n) for i, n in (word.split(":") for word in wrong.split())}
    assert counts.pop(BAD) == 0
    # With it those were set aside that were to be read at once with it, of its shard.
    assert sum(epochs - count for count in counts.values()) < epochs * BATCH
    shards = [_shard_of_the_bad(epoch) for epoch in range(epochs)]
    for sample, count in counts.items():
        assert epochs - count in range(1, sum(sample in shard for shard in shards) + 1)


def _shard_of_the_bad(epoch: int) -> set[int]:
    order = Permutation(SAMPLES, 5, epoch)
    found = [order.value_at(place) for place in range(SAMPLES)]
    begin = found.index(BAD) // SHARD * SHARD
    return {*found[begin : begin + SHARD]}


def _kill_one(job: Job, pod: int) -> float:
    """SIGKILL the pod's training process; the time, after which it steps no more."""
    kill(job.pods[pod].steps()[-1]["pid"])
    return time.time()


def _scale(job: Job, count: int) -> bool:
    try:
        return codec.loads(Ack, job.ask(names.PATH_SCALE, ScaleRequest(count, ""))).done
    except OSError:
        return False  # the coordinator is starting
