# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the elastic data loader costs beside torch's own, and what its place in the data takes.

``make bench-sharding`` writes build/bench/sharding.json. Both loaders read the same data set with
the same workers, one after the other in each round; the overhead is the median of the rounds'
ratios. A sample is an image of 8 x 8 bytes, so it is small beside any that is decoded.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from rover_kf import ElasticDataLoader
from rover_kf.sharding.permutation import Permutation

COPIES = 12
"""Of the digits, 1,797 each."""
BATCH, RANKS = 256, 4
SIZES = (10**6, 10**9, 10**12)


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Images of 8 x 8, normalised one by one as data sets of images do."""

    def __init__(self, copies: int) -> None:
        images, self._labels = load_digits(return_X_y=True)
        self._images = images.astype("uint8").reshape(-1, 1, 8, 8)
        self._copies = copies

    def __len__(self) -> int:
        return len(self._images) * self._copies

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        index %= len(self._images)
        image = torch.from_numpy(self._images[index])
        return image.float().div_(16).sub_(0.5), int(self._labels[index])


class Counted(Dataset[int]):
    """Any number of samples that do not exist."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/sharding.json")
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    report = {
        "loader_overhead": {str(workers): overhead(workers, given.rounds) for workers in (0, 2)},
        "orders": {f"{size:.0e}": order(size) for size in SIZES},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def overhead(workers: int, rounds: int) -> dict[str, Any]:
    """Samples a second of one of four ranks through both loaders."""
    data = Digits(COPIES)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    sampler: DistributedSampler[Any] = DistributedSampler(data, RANKS, 1)
    plain = DataLoader(data, BATCH // RANKS, sampler=sampler, **options)
    elastic = ElasticDataLoader(data, BATCH, rank=1, world_size=RANKS, **options)
    found: dict[str, list[float]] = {"torch": [], "elastic": []}
    pace(plain)
    pace(elastic)
    for number in range(rounds):
        pairs = [("torch", plain), ("elastic", elastic)]
        for name, loader in pairs if number % 2 == 0 else reversed(pairs):
            found[name].append(pace(loader))
    ratios = [torchs / ours for torchs, ours in zip(found["torch"], found["elastic"], strict=True)]
    return {
        "overhead": round(statistics.median(ratios) - 1, 4),
        "samples_per_second": {k: round(statistics.median(v)) for k, v in found.items()},
        "rounds": rounds,
    }


def pace(loader: Iterable[Any]) -> float:
    """Samples a second over an epoch."""
    begun, count = time.perf_counter(), 0
    for images, _ in loader:
        count += len(images)
    return count / (time.perf_counter() - begun)


def order(size: int) -> dict[str, float]:
    """An order's memory, its state, and how soon its middle is there."""
    tracemalloc.start()
    made = Permutation(size, 1, 2)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    loader = ElasticDataLoader(Counted(size), BATCH, rank=1, world_size=RANKS)
    loader.load_state_dict(loader.state_dict() | {"done": size // 2})
    return {
        "order_bytes": memory,
        "snapshot_bytes": len(json.dumps(loader.state_dict())),
        "snapshot_ms": milliseconds(loader.state_dict),
        "first_batch_ms": milliseconds(lambda: next(loader.ordered())),
        "sample_us": milliseconds(lambda: made.at(size // 2)) * 1e3,
    }


def milliseconds(call: Callable[[], object]) -> float:
    """Median of a call's time."""
    samples = []
    for _ in range(21):
        begun = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begun)
    return round(statistics.median(samples) * 1e3, 4)


if __name__ == "__main__":
    main()
