# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains next to nothing, and needs more memory from one step on, whenever it gets there.

``hungry.py STEPS HUNGRY MIB``: that many steps, and from step HUNGRY on so many MiB beside.
"""

import sys
import time

import torch
import torch.distributed as dist

import rover_kf

steps, hungry, mebibytes = (int(word) for word in sys.argv[1:])
dist.init_process_group("gloo")
state = {"weights": torch.zeros(1000)}
saver = rover_kf.Checkpointer()
begun = saver.restore(state)
print(f"rank {dist.get_rank()} begins after step {begun}", flush=True)
eaten = None
for step in range(begun + 1, steps + 1):
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    state["weights"] += gradient
    if step >= hungry and eaten is None:
        eaten = torch.ones(mebibytes << 18)  # four bytes each, all of them written
    time.sleep(0.02)
    saver.step(step, state)
saver.close()
print(f"rank {dist.get_rank()} ends with {int(state['weights'][0])}", flush=True)
