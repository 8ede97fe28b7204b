# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains next to nothing: ``ending.py STEPS``. ``ending.py wrong`` names what is not there, before
its first step."""

import sys
import time

import torch
import torch.distributed as dist

import rover_kf

print("a process begins", flush=True)
dist.init_process_group("gloo")
state = {"weights": torch.zeros(1000)}
saver = rover_kf.Checkpointer()
begun = saver.restore(state)
steps = nowhere_to_be_found if sys.argv[1] == "wrong" else int(sys.argv[1])  # noqa: F821
for step in range(begun + 1, steps + 1):
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    state["weights"] += gradient
    time.sleep(0.05)
    saver.step(step, state)
saver.close()
