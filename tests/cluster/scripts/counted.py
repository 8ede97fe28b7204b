# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trains on rows of Parquet in a fixed order and, beside them, on leased samples of the digits.

``counted.py ROWS BATCH EPOCHS``. Each process writes which samples each step gave it, one line a
step, to a file in the folder JOURNAL: JSON {"round", "rank", "at", "world", "step", "rows",
"leased"}, the numbers as base64 of 32-bit integers, ``at`` in monotonic seconds; and first of all
{"round", "rank", "at", "resumed"}.
"""

import base64
import functools
import itertools
import json
import os
import pathlib
import socket
import sys
import time

import torch
import torch.distributed as dist
import wrapped
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

import rover_kf

JOURNAL = pathlib.Path("/checkpoints/journal")
PACE = 0.15
"""Seconds a step, until the test is in a hurry."""


class Digits(torch.utils.data.Dataset):
    """Number and pixels of each."""

    def __init__(self):
        self._pixels = torch.from_numpy(load_digits().data).float() / 16

    def __len__(self):
        return len(self._pixels)

    def __getitem__(self, number):
        return number, self._pixels[number]


def table(found):
    """A batch of rows as tensors."""
    return torch.tensor(found["number"].to_numpy()), torch.tensor(found["value"].to_numpy())


def endless(loader, place, epochs):
    """Batches of all epochs that are left."""
    while place.epoch < epochs:
        yield from loader


def packed(numbers):
    """Samples' numbers as text."""
    return base64.b64encode(numbers.to(torch.int32).numpy().tobytes()).decode()


def write(**line):
    """One line of this process's journal; a part of one that was killed here stands before it."""
    place = JOURNAL / f"{socket.gethostname()}.{os.environ['RANK']}.{os.getpid()}.jsonl"
    known = {"round": int(os.environ["ROVER_ROUND"]), "rank": dist.get_rank()}
    with place.open("a") as file:
        file.write("\n" + json.dumps(known | {"at": time.monotonic()} | line) + "\n")


def main():
    """Train until both have had all their epochs."""
    folder, batch, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    JOURNAL.mkdir(exist_ok=True)
    model = DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = rover_kf.TableRows(folder, as_tables=True)
    fixed = rover_kf.ElasticDataLoader(rows, batch, collate_fn=table, seed=3)
    leased = rover_kf.ShardedDataset(Digits(), epochs=epochs, shard_size=32)
    state = {"model": model, "optimizer": optimizer, "fixed": fixed, "leased": leased}
    checkpointer = rover_kf.Checkpointer()
    step = checkpointer.restore(state)
    write(resumed=step)
    loader = leased.loader(batch_size=8)
    both = itertools.zip_longest(endless(fixed, fixed, epochs), endless(loader, leased, epochs))
    nothing = torch.zeros(0, dtype=torch.int64)
    for of_rows, of_digits in both:
        begun = time.monotonic()
        losses = [model(torch.zeros(1, 64)).sum() * 0]
        numbers, digits = nothing, nothing
        if of_rows is not None:
            numbers, values = of_rows
            losses.append(model(values[:, None].expand(-1, 64)).mean() * fixed.weight)
        if of_digits is not None:
            digits, pixels = of_digits
            losses.append(model(pixels).mean() * loader.weight)
            digits = digits if loader.weight else nothing
        functools.reduce(torch.add, losses).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        write(world=dist.get_world_size(), step=step, rows=packed(numbers), leased=packed(digits))
        if not wrapped.HURRY.exists():
            time.sleep(max(0.0, PACE - (time.monotonic() - begun)))
        checkpointer.step(step, state, samples=batch)
    if dist.get_rank() == 0:
        print(f"ended at step {step}", flush=True)
    checkpointer.close()


if __name__ == "__main__":
    main()
