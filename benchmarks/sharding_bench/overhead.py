# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the elastic data loader costs beside torch's own with DistributedSampler.

Both read the same data set with as many workers, in turn. Told are the processors' time of the
process and its workers for a sample, which unlike the clock does not depend on who else computes,
and the clock's. Two epochs side by side make a ratio; told are the median of the ratios and between
which bounds it lies with 95 % (bootstrap). A sample is an image of 8 x 8 bytes: small beside any
that is decoded.
"""

from __future__ import annotations

import os
import pathlib
import random
import statistics
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from rover_kf import ElasticDataLoader

COPIES = 12
"""Of the digits, 1,797 each."""
BATCH, RANKS = 256, 4
RESAMPLED = 2000


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


def measure(workers: int, rounds: int) -> dict[str, Any]:
    """One of four ranks reads an epoch through both loaders, once in each round."""
    data = Digits(COPIES)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    sampler: DistributedSampler[Any] = DistributedSampler(data, RANKS, 1)
    loaders: dict[str, DataLoader[Any]] = {
        "torch": DataLoader(data, BATCH // RANKS, sampler=sampler, **options),
        "elastic": ElasticDataLoader(data, BATCH, rank=1, world_size=RANKS, **options),
    }
    for loader in loaders.values():
        epoch(loader)
    processors: dict[str, list[float]] = {name: [] for name in loaders}
    clock: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds):
        for name in loaders if number % 2 == 0 else reversed(loaders):
            used, passed = epoch(loaders[name])
            processors[name].append(used)
            clock[name].append(passed)
    return {
        **_compared("", processors),
        **_compared("clock_", clock),
        "processor_us": {k: round(statistics.median(v) * 1e6, 3) for k, v in processors.items()},
        "samples_per_second": {k: round(1 / statistics.median(v)) for k, v in clock.items()},
        "rounds": rounds,
    }


def _compared(by: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """What ours takes more than torch's, by pairs of epochs."""
    ratios = [ours / torchs for ours, torchs in zip(*reversed(seconds.values()), strict=True)]
    low, high = interval(ratios)
    return {
        f"{by}overhead": round(statistics.median(ratios) - 1, 4),
        f"{by}interval": [round(low - 1, 4), round(high - 1, 4)],
    }


def epoch(loader: DataLoader[Any]) -> tuple[float, float]:
    """Seconds a sample: of all processors, and of the clock."""
    # Workers that stay are there before the epoch that is measured.
    begun, used, count = time.perf_counter(), _processors(loader), 0
    for images, _ in loader:
        count += len(images)
    passed = time.perf_counter() - begun
    return (_processors(loader) - used) / count, passed / count


def _processors(loader: DataLoader[Any]) -> float:
    """Seconds that this process and the loader's workers have computed, all threads."""
    workers = getattr(loader._iterator, "_workers", [])
    found = 0
    for process in (os.getpid(), *(worker.pid for worker in workers)):
        for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
            found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where their median lies with 95 %."""
    drawn = random.Random(0)  # noqa: S311 - no secret
    medians = sorted(
        statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED)
    )
    return medians[RESAMPLED // 40], medians[-RESAMPLED // 40 - 1]
