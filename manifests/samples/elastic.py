# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The script plain.py, made elastic and checkpointed: ``diff plain.py elastic.py`` shows how.

    rover-kf train --replicas 1:4 elastic.py

After a failure, or a change of the world's size, it goes on at the step where it was.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rover_kf import Checkpointer

BATCH = 96


def main() -> None:
    """Train and tell the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a step, as of a disk")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    wanted = torch.randn(32)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    checkpointer = Checkpointer()
    state = {"model": model, "optimizer": optimizer}
    done = checkpointer.restore(state)
    for step in range(done + 1, given.steps + 1):
        torch.manual_seed(step)
        inputs = torch.randn(BATCH, 32)[rank::world_size]
        loss = nn.functional.mse_loss(parallel(inputs)[:, 0], (inputs @ wanted).tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpointer.step(step, state, samples=len(inputs), total_steps=given.steps)
        time.sleep(given.pause)
        if rank == 0 and step % 50 == 0:
            print(f"step {step} of {given.steps}: loss {float(loss.detach()):.4f}", flush=True)
    checkpointer.close()
    if rank == 0:
        print(f"trained by {world_size} on {os.uname().nodename}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
