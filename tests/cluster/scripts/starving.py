# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains next to nothing on samples that take its loader's worker time of a core, until deleted.

``starving.py SECONDS``: each of four samples of a step takes so many seconds of one core, in a
process of the loader; the loop itself takes hardly any. It tells how long each step waited.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import rover_kf

BATCH, STEPS = 4, 1_000_000
cores = float(sys.argv[1])


class Costly(Dataset):
    """Samples that take as much of a core whatever the limit of the container."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        ended = time.process_time() + cores
        while time.process_time() < ended:
            pass
        return torch.ones(100)


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
state = {"weights": torch.zeros(100)}
saver = rover_kf.Checkpointer()
step = saver.restore(state)
print(f"rank {rank} of {ranks} begins after step {step}", flush=True)
batches = iter(DataLoader(Costly(), batch_size=BATCH // ranks, num_workers=1))
while step < STEPS:
    step += 1
    asked = time.perf_counter()
    gradient = next(batches).mean(0)
    waited = time.perf_counter() - asked
    dist.all_reduce(gradient)
    state["weights"] += gradient
    if step % 10 == 0:
        print(f"step {step} waited {waited:.3f}", flush=True)
    saver.step(step, state, samples=BATCH // ranks, wait_seconds=waited, total_steps=STEPS)
saver.close()
