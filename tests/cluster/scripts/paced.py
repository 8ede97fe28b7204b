# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains next to nothing, at a pace that depends on the number of ranks, until it is deleted.

``paced.py LAW SECONDS``: a step takes so many seconds with one rank; with K ranks a Kth of it where
the law is ``grows``, and a fifth more for each further rank where it is ``slows``.
"""

import sys
import time

import torch
import torch.distributed as dist

import rover_kf

BATCH, STEPS = 60, 1_000_000
law, alone = sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
seconds = alone / ranks if law == "grows" else alone * (1 + (ranks - 1) / 5)
state = {"weights": torch.zeros(1000)}
saver = rover_kf.Checkpointer()
step = saver.restore(state)
print(f"rank {rank} of {ranks} begins after step {step}", flush=True)
while step < STEPS:
    step += 1
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    state["weights"] += gradient
    time.sleep(seconds)
    saver.step(step, state, samples=BATCH // ranks, total_steps=STEPS)
saver.close()
