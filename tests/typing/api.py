# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How typed user code looks; type-checked by ``make check``, never run."""

from __future__ import annotations

import pathlib

import torch

import rover_kf


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The three lines of a training script."""
    state: dict[str, object] = {"model": model, "optimizer": optimizer}
    with rover_kf.Checkpointer(every=20) as checkpointer:
        start: int = checkpointer.restore(state)
        for step in range(start + 1, 101):
            checkpointer.step(step, state, samples=32, total_steps=100)
        safe: bool = checkpointer.wait(100, "durable")
        source: str = checkpointer.restored_from
        print(safe, source)


def files(folder: str) -> int:
    """A framework that writes a folder."""
    checkpointer = rover_kf.DirectoryCheckpointer(replicated=True)
    start: int = checkpointer.restore(folder)
    checkpointer.save(start + 1, pathlib.Path(folder))
    return start


def key() -> str:
    """Where a job is found."""
    return str(rover_kf.JobKey("default", "digits"))


def size(recommendation: rover_kf.Recommendation) -> float | None:
    """Reading a recommendation."""
    quantity: rover_kf.Quantity | None = recommendation.get("replicas")
    return quantity.target if quantity else None


def gain(decision: rover_kf.ScaleDecision) -> float:
    """Reading a decision."""
    return decision.predicted_gain
