# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that train a small model by FSDP2, tensor parallelism or DDP up to a step, and tell what
they were given and what they end with: SHA-256 over all tensors made whole.

Run as a script it forks the ranks of a world for each line of its standard input, JSON: {"ranks":
[environment, …], "way": "fsdp" | "tensor-parallel" | "ddp", "last": step, "level": that it is to
be safe at, "result": file that rank 0 writes, "errors": folder for what each rank has to complain}.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from rover_kf import Checkpointer
from tests.support.process_pool import forked_ranks


def build(way: str, world_size: int) -> nn.Module:
    """Sizes that no world of 3 or 4 divides evenly, but for tensor parallelism, which has to."""
    width = 24 if way == "tensor-parallel" else 13
    model = nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, 5))
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (world_size,))
    if way == "fsdp":
        fully_shard(model, mesh=mesh)
        return model
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def whole(value: object) -> object:
    """DTensors made whole, in nested dicts and lists."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [whole(item) for item in value]
    return value


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all tensors of the training, the same in every world."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return digest_of(whole(inner.state_dict()), whole(optimizer.state_dict()["state"]))


def digest_of(*states: object) -> str:
    """Of the tensors in nested dicts and lists."""
    found = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, dict):
            for item in value.values():
                add(item)
        elif isinstance(value, list):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            found.update(str(tuple(value.shape)).encode() + value.contiguous().numpy().tobytes())

    for state in states:
        add(state)
    return found.hexdigest()


def kept_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Copies as a loop keeps them of its best step, which a new process has none of."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": weights, "optimizer": optimizer.state_dict()}


def load_kept(kept: dict, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Go back to them, as a loop does; torch takes DTensors for DTensors alone."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])


def train(asked: dict) -> None:
    """One rank's."""
    way, last = asked["way"], asked["last"]
    with pathlib.Path(asked["errors"], os.environ["RANK"]).open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1 + last)  # another start each round: what is restored must replace it
    model = build(way, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[str, object] = {"model": model, "optimizer": optimizer, "rank": rank}
    state |= {"way": way, "kept": None}
    checkpointer = Checkpointer(every=1)
    resumed = checkpointer.restore(state)
    restored = digest(model, optimizer) if resumed else None
    if resumed and state["way"] == way:
        load_kept(state["kept"], model, optimizer)
        assert digest(model, optimizer) == restored
    state["way"] = way
    for step in range(resumed + 1, last + 1):
        torch.manual_seed(step)
        batch = torch.randn(12, 7)
        part = batch if way == "tensor-parallel" else batch[rank::world_size]
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()
        state["kept"] = kept_of(model, optimizer)
        checkpointer.step(step, state, total_steps=last)
    assert checkpointer.wait(last, asked["level"], timeout=60)
    ended = digest(model, optimizer)
    if rank == 0:
        told = {
            "resumed": resumed,
            "restored": restored,
            "restored_from": checkpointer.restored_from,
            "step": last,
            "ended": ended,
        }
        pathlib.Path(asked["result"]).write_text(json.dumps(told))
    checkpointer.close()


if __name__ == "__main__":
    forked_ranks.serve(train)
