# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains next to nothing, and takes more memory with each step, which it never gives back.

``leaking.py STEPS KIB``: that many steps of a tenth of a second, so many KiB more after each.
"""

import pathlib
import sys
import time

import torch
import torch.distributed as dist

import rover_kf


def taken() -> int:
    """MiB of no file that the kernel counts against the container's limit."""
    one, two = (pathlib.Path("/sys/fs/cgroup", name) for name in ("memory", ""))
    path, key = (one, "rss") if one.is_dir() else (two, "anon")
    lines = (path / "memory.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[0] == key) >> 20


steps, kibibytes = (int(word) for word in sys.argv[1:])
dist.init_process_group("gloo")
state = {"weights": torch.zeros(1000)}
saver = rover_kf.Checkpointer()
begun = saver.restore(state)
print(f"rank {dist.get_rank()} begins after step {begun}", flush=True)
kept = []
for step in range(begun + 1, steps + 1):
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    state["weights"] += gradient
    kept.append(torch.ones(kibibytes << 8))  # four bytes each, all of them written
    time.sleep(0.1)
    saver.step(step, state, total_steps=steps)
    if step % 100 == 0:
        print(f"step {step}: {taken()} MiB", flush=True)
saver.close()
print(f"ends with {int(state['weights'][0])}, {taken()} MiB taken", flush=True)
