# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One epoch of data-parallel training in real processes, one rank slower: seconds on the last line.

The accelerator is simulated: a sample takes a rank as long as it is told to, asleep, since four
ranks that computed would share two cores. All else is real: gloo, DistributedDataParallel, loaders.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler


class Points(Dataset[torch.Tensor]):
    """Samples that cost nothing to read."""

    def __init__(self, count: int) -> None:
        self._count, self._point = count, torch.ones(8)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._point


class Known(Sampler[list[int]]):
    """One rank's part of each batch, the same in all of them, the samples in their order.

    Args:
        parts: samples of a batch, by rank.
        rank: of these.
        samples: of the epoch.
    """

    def __init__(self, parts: Sequence[int], rank: int, samples: int) -> None:
        self._begin, self._size = sum(parts[:rank]), parts[rank]
        self._batch, self._samples = sum(parts), samples

    def __len__(self) -> int:
        return self._samples // self._batch

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(self._begin, self._samples, self._batch):
            yield list(range(begin, begin + self._size))


class Accelerator(torch.nn.Module):
    """A linear layer on a device that takes a time for each sample."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self._seconds = torch.nn.Linear(8, 1), seconds

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """As long as the points take."""
        time.sleep(self._seconds * len(points))
        return self.layer(points)


def main() -> None:
    """Fork the ranks, of which the first one tells the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=["ideal", "static", "dlrover", "rover"])
    parser.add_argument("--seconds", type=float, nargs="+", help="that a sample takes each rank")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_fork(given, rank, pathlib.Path(folder)) for rank in range(len(given.seconds))]
        assert all(os.waitpid(rank, 0)[1] == 0 for rank in ranks)
        print((pathlib.Path(folder) / "found").read_text())


def _fork(given: argparse.Namespace, rank: int, folder: pathlib.Path) -> int:
    process = os.fork()
    if not process:
        world = len(given.seconds)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
        found = epoch(given, rank)
        if rank == 0:
            (folder / "found").write_text(json.dumps(found))
        os._exit(0)
    return process


def epoch(given: argparse.Namespace, rank: int) -> dict[str, float]:
    """Train on each sample once, beginning with nothing known."""
    model = DistributedDataParallel(Accelerator(given.seconds[rank]))
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    loader = _loader(given, rank, model)
    optimizer.step()  # its first call imports for a second
    dist.barrier()
    begun, steps = time.monotonic(), 0
    for points in loader:
        weight = getattr(loader, "weight", 1.0)
        (model(points).mean() * weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    dist.barrier()
    return {"seconds": time.monotonic() - begun, "steps": steps}


def _loader(given: argparse.Namespace, rank: int, model: torch.nn.Module) -> Any:
    data, part = Points(given.samples), given.batch // len(given.seconds)
    if given.system == "ideal":
        from rover_kf.sharding.shares import shares  # noqa: PLC0415 - a peer's environment may lack it

        costs = [int(seconds * 1e9) for seconds in given.seconds]
        parts = shares(given.batch, costs, least=1, most=given.batch)
        return DataLoader(data, batch_sampler=Known(parts, rank, given.samples))
    if given.system == "static":
        return DataLoader(data, part, sampler=DistributedSampler(data))
    if given.system == "dlrover":
        from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler  # noqa: PLC0415 - only in its environment

        return DataLoader(data, part, sampler=ElasticDistributedSampler(data))
    from rover_kf import ElasticDataLoader  # noqa: PLC0415 - a peer's environment may lack it

    return ElasticDataLoader(data, given.batch, balance=model)


if __name__ == "__main__":
    main()
