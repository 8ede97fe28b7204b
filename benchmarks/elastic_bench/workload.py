# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job of all sides: a small network under DDP, a checkpoint as the side would keep it.

``--keep torch``: rank 0 writes with torch.save to shared storage every 50 steps, and everyone loads
the newest file. ``--keep rover``: the three lines of rover-kf. All else is the same for both.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import secrets
import socket
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist
from journal import Marks, Process  # a pod has this folder, and not the repository
from torch import nn

WIDTH = 256
STEPS_A_FILE = 50
"""A checkpoint on shared storage costs its time: not after every step."""


class Keeper(Protocol):
    """A way to keep the training's state."""

    def restore(self, state: dict[str, Any]) -> int:
        """Bring back the newest state; its step, 0 if there is none."""

    def step(self, number: int, state: dict[str, Any]) -> None:
        """A step was made."""


class Files:
    """torch.save by rank 0: a file beside, then its name.

    Args:
        folder: that all ranks see.
        rank: of this process.
    """

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        self._path, self._rank = folder / "newest.pt", rank
        folder.mkdir(parents=True, exist_ok=True)

    def restore(self, state: dict[str, Any]) -> int:
        """See Keeper."""
        if not self._path.exists():
            return 0
        found = torch.load(self._path, weights_only=True)
        for name, part in state.items():
            part.load_state_dict(found[name])
        return int(found["step"])

    def step(self, number: int, state: dict[str, Any]) -> None:
        """See Keeper."""
        if self._rank or number % STEPS_A_FILE:
            return
        beside = self._path.with_suffix(".part")
        found = {name: part.state_dict() for name, part in state.items()}
        torch.save({"step": number, **found}, beside)
        beside.replace(self._path)


def keeper(kind: str, folder: pathlib.Path, rank: int) -> Keeper:
    """The side's own."""
    if kind == "torch":
        return Files(folder, rank)
    from rover_kf import Checkpointer  # noqa: PLC0415 - stock pods do not have it

    return Checkpointer()


def main() -> None:
    """Train until the job is deleted, or all steps are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", choices=("torch", "rover"), required=True)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--marks", type=pathlib.Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=1_000_000)
    given = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    state = {"model": model, "optimizer": optimizer}
    kept = keeper(given.keep, given.checkpoints, rank)
    resumed = kept.restore(state)
    pod = os.environ.get("ROVER_KF_BENCH_POD") or socket.gethostname()
    marks = Marks(given.marks, Process(pod, os.getpid(), _world(), size, rank, resumed))
    batch = torch.rand(32, WIDTH)
    for number in range(resumed + 1, given.steps + 1):
        begun = time.monotonic()
        loss = nn.functional.mse_loss(trained(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        # What an accelerator would compute: the machine's cores are left to the recovery.
        time.sleep(max(0.0, given.step_seconds - (time.monotonic() - begun)))
        optimizer.step()
        kept.step(number, state)
        marks.step(number)
    dist.destroy_process_group()


def _world() -> int:
    """A number that rank 0 draws for all."""
    drawn = torch.tensor([secrets.randbits(48)])
    dist.broadcast(drawn, 0)
    return int(drawn.item())


if __name__ == "__main__":
    main()
