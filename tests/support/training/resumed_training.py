# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that train a sample's model, write down each step's loss, and kill themselves when told to.

Run as a script it forks the ranks of a world for each line of its standard input, JSON: {"ranks":
[environment, …], "way": "digits" | "dropout" | "char-gpt" | "fsdp", "steps": to train, "dies": step
in which all ranks are killed, or 0, "journal": folder of what each rank has trained}. The ranks are
killed on both sides of the step's save: some have told of it, others have not.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rover_kf import Checkpointer
from tests.support.process_pool import forked_ranks

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "manifests" / "samples"))

import char_gpt
import digits

BATCH = 24


class Random:
    """Torch's random numbers, which are another on each rank."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        torch.set_rng_state(state["torch"])


Loss = Callable[[nn.Module, int], torch.Tensor]


def build(way: str, rank: int, world_size: int) -> tuple[nn.Module, Loss]:
    """The model as it is trained, and its mean loss of a step's part of this rank."""
    if way in ("digits", "dropout"):
        images, labels = digits.read_digits()

        def told(model: nn.Module, step: int) -> torch.Tensor:
            batch = digits.batch_of(step, BATCH, len(images), 0)[rank::world_size]
            return nn.functional.cross_entropy(model(images[batch]), labels[batch])

        inner = digits.build_model()
        if way == "dropout":
            inner = nn.Sequential(nn.Dropout(0.2), inner)
        return nn.parallel.DistributedDataParallel(inner), told
    text = char_gpt.read_text()
    model: nn.Module = char_gpt.Gpt(16, 1, heads=4)

    def passages(model: nn.Module, step: int) -> torch.Tensor:
        begins = char_gpt.batch_of(step, BATCH, len(text), 0)[rank::world_size]
        return char_gpt.loss_of(model, text, begins) / len(begins)

    if way == "char-gpt":
        return nn.parallel.DistributedDataParallel(model), passages
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, passages


def train(asked: dict) -> None:
    """One rank's."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model, loss_of = build(asked["way"], rank, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, asked["steps"])
    state: dict[str, object] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if asked["way"] == "dropout":
        torch.manual_seed(100 + rank)
        state["random"] = Random()
    checkpointer = Checkpointer()
    begun = checkpointer.restore(state)
    with pathlib.Path(asked["journal"], str(rank)).open("a") as journal:
        print("from", begun, checkpointer.restored_from, file=journal, flush=True)
        for step in range(begun + 1, asked["steps"] + 1):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(step, loss.item().hex(), file=journal, flush=True)
            if step == asked["dies"] and rank % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            checkpointer.step(step, state, total_steps=asked["steps"])
            if step == asked["dies"]:
                if step % checkpointer.every == 0:  # nobody seals another one: that wait is long
                    checkpointer.wait(step, "memory", 60)
                os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.wait(asked["steps"], "durable", 60)
    checkpointer.close()
    dist.barrier()  # rank 0 has the store, which others may still ask


if __name__ == "__main__":
    forked_ranks.serve(train)
