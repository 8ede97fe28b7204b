# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of a world for each line of its standard input: data-parallel training whose
ranks take parts of a step by their speed. A sample takes each rank as long as it is told to,
asleep: what an accelerator computes takes no time of this machine's cores.

Each rank writes what it was given in every step, and the weights that it ended with.
"""

from __future__ import annotations

import json
import os
import pathlib
import time

import forked_ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from rover_kf import ElasticDataLoader

SAMPLES, BATCH, SEED = 1600, 32, 5


class Points(Dataset):
    """Number i and a point that belongs to it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(6, generator=generator, dtype=torch.float64)


class Accelerator(torch.nn.Module):
    """A linear layer on a device of some speed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 1, dtype=torch.float64)
        self._seconds = seconds

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        time.sleep(self._seconds * len(points))
        return self.layer(points)


def main(asked: dict) -> None:
    """One rank: steps from a place on, to a folder."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = pathlib.Path(asked["folder"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    model = DistributedDataParallel(Accelerator(asked["seconds"][rank]))
    loader = ElasticDataLoader(
        Points(), BATCH, seed=SEED, balance=model, **asked.get("options", {})
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    if "state" in asked:
        loader.load_state_dict(asked["state"])
        model.module.load_state_dict(torch.load(asked["weights"]))
    steps = [[]]
    for indices, points in loader:
        steps[-1] += indices.tolist() if loader.weight else []
        loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
        (loss * loader.weight).backward()
        if loader.accumulates:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if len(steps) == asked["steps"]:
            break
        steps.append([])
    torch.save(model.module.state_dict(), folder / f"{rank}.pt")
    found = {"steps": [step for step in steps if step], "state": loader.state_dict()}
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.serve(main)
