# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of a world for each line of its standard input: data-parallel training whose
ranks may have unequal parts of a step.

Each rank writes what it was given in every step, and the weights that it ended with.
"""

from __future__ import annotations

import json
import os
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from rover_kf import ElasticDataLoader
from tests.support.process_pool import forked_ranks

SAMPLES, BATCH, SEED = 1600, 32, 5


class Points(Dataset):
    """Number i and a point that belongs to it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(6, generator=generator, dtype=torch.float64)


def model() -> torch.nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    return torch.nn.Linear(6, 1, dtype=torch.float64)


def main(asked: dict) -> None:
    """One rank: steps from a place on, to a folder."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = pathlib.Path(asked["folder"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    trained = DistributedDataParallel(model())
    loader = ElasticDataLoader(Points(), BATCH, seed=SEED, **asked.get("options", {}))
    optimizer = torch.optim.SGD(trained.parameters(), 0.05)
    if "state" in asked:
        loader.load_state_dict(asked["state"])
        trained.module.load_state_dict(torch.load(asked["weights"]))
    steps = [[]]
    for indices, points in loader:
        steps[-1] += indices.tolist() if loader.weight else []
        loss = (trained(points) - points.sum(1, keepdim=True)).square().mean()
        (loss * loader.weight).backward()
        if loader.accumulates:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if len(steps) == asked["steps"]:
            break
        steps.append([])
    torch.save(trained.module.state_dict(), folder / f"{rank}.pt")
    found = {"steps": [step for step in steps if step], "state": loader.state_dict()}
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.serve(main)
