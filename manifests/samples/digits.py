# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small CNN on scikit-learn's handwritten digits; DDP over any number of processes.

Runs as it is: ``python digits.py``, ``torchrun --nproc-per-node 2 digits.py``, or as the command of
a PyTorchJob. The lines marked "rover-kf" make it survive crashes and changes of the world's size.

Which images a step trains on depends on seed and step alone, so a run that goes on with another
number of processes sees the same batches in the same order.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn

from rover_kf import Checkpointer

IMAGE_SIDE, CLASSES, HELD_OUT_EVERY = 8, 10, 5


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1,797 images as [n, 1, 8, 8] in 0…1, and their labels."""
    # The package's own data file, read directly: importing scikit-learn takes a second.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("digits.py needs scikit-learn: pip install scikit-learn")
    package = pathlib.Path(spec.submodule_search_locations[0])
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in file])
    images = rows[:, :-1].reshape(-1, 1, IMAGE_SIDE, IMAGE_SIDE) / 16
    return images, rows[:, -1].long()


def build_model() -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, CLASSES),
    )  # fmt: skip


def batch_of(step: int, size: int, count: int, seed: int) -> torch.Tensor:
    """Indices of the global batch of a step (from 1 on): epochs of permutations, end to end."""
    begin = (step - 1) * size
    picked = []
    for epoch in range(begin // count, (begin + size - 1) // count + 1):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        picked.append(order[max(begin - epoch * count, 0) : begin + size - epoch * count])
    return torch.cat(picked)


class Source:
    """Input that gives at most so many samples a second, as a remote store would."""

    def __init__(self, samples_per_second: float) -> None:
        self._rate = samples_per_second
        self._ready_at = time.monotonic()

    def wait_for(self, samples: int) -> float:
        """Block until the samples are there; returns the seconds waited."""
        if not self._rate:
            return 0.0
        begun = time.monotonic()
        self._ready_at = max(self._ready_at, begun) + samples / self._rate
        time.sleep(self._ready_at - begun)
        return time.monotonic() - begun


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of images that are told right."""
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def parse_arguments(world_size: int) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=64, help="images a step, all ranks")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--samples-per-second", type=float, default=0.0, help="limit of each rank's input; 0: none"
    )
    parser.add_argument("--result", type=pathlib.Path, help="JSON file that rank 0 writes")
    given = parser.parse_args()
    if given.global_batch < world_size:
        parser.error(f"--global-batch {given.global_batch} is less than one image a rank")
    return given


def main() -> None:
    """Train, then tell the accuracy on the images that were held out."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    given = parse_arguments(world_size)
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    images, labels = read_digits()
    held_out = torch.arange(len(images)) % HELD_OUT_EVERY == 0
    train_images, train_labels = images[~held_out], labels[~held_out]

    model = build_model()
    trained = model
    if world_size > 1:
        dist.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=given.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    source = Source(given.samples_per_second)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loss": 0.0}
    checkpointer = Checkpointer()  # rover-kf, 1 of 3
    resumed = checkpointer.restore(state)  # rover-kf, 2 of 3
    print(f"rank {rank} of {world_size} starts after step {resumed}", flush=True)

    trained.train()
    for step in range(resumed + 1, given.steps + 1):
        batch = batch_of(step, given.global_batch, len(train_images), given.seed)[rank::world_size]
        waited = source.wait_for(len(batch))
        losses = nn.functional.cross_entropy(
            trained(train_images[batch]), train_labels[batch], reduction="sum"
        )
        optimizer.zero_grad()
        # DDP averages over ranks; parts of unequal size must still weigh by their images.
        (losses * world_size / given.global_batch).backward()
        optimizer.step()
        scheduler.step()
        state["loss"] = losses.item() / len(batch)
        checkpointer.step(  # rover-kf, 3 of 3
            step, state, samples=len(batch), wait_seconds=waited, total_steps=given.steps
        )
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {state['loss']:.4f}", flush=True)

    if rank == 0:
        result = {
            "accuracy": accuracy(model, images[held_out], labels[held_out]),
            "steps": given.steps,
            "final_loss": state["loss"],
            "world_size": world_size,
            "resumed_step": resumed,
            "restored_from": checkpointer.restored_from,
        }
        print(json.dumps(result), flush=True)
        if given.result:
            given.result.write_text(json.dumps(result))
    checkpointer.close()
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
