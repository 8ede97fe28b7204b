# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings that save and load by torch.distributed.checkpoint, each rank forked from this process.

    dcp_training.py RUNS

RUNS is JSON: [{"way": "fsdp" | "fsdp1" | "ddp" | "alone", "ranks": [environment, …], "result":
file, "level": to be waited for, "stock": folder or null, "export": folder or null}, …]. Each goes
on from what is there, or from the stock checkpoint, by two steps; rank 0 tells digests of all
tensors.
"""

from __future__ import annotations

import functools
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

from rover_kf import Checkpointer
from rover_kf.trainer.dcp import Reader, Writer
from tests.support.process_pool import forked_ranks
from tests.support.training import sharded_training

STEPS = 2


def build(way: str, size: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """What is trained; alone it is the same model without any wrapper."""
    model = sharded_training.build("ddp" if way in ("alone", "fsdp1") else way, size)
    if way in ("alone", "fsdp1"):
        model = model.module
    if way == "fsdp1":
        mesh = init_device_mesh("cpu", (size,))  # with a mesh its state dicts have DTensors
        model = FullyShardedDataParallel(
            model, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu")
        )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict:
    """As torch's own guide has it."""
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments, "progress": {"step": step}}


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all tensors, the same for every way."""
    state = sharded_training.whole(state_of(model, optimizer, 0))
    return sharded_training.digest_of(state["model"], state["optimizer"]["state"])


def load(run: dict, checkpointer: Checkpointer, model, optimizer) -> tuple[int, int]:
    """The step found in memory or on storage, and the step that it says."""
    state = state_of(model, optimizer, 0)
    reader = Reader(checkpointer, state)
    found = reader.find()
    if found:
        dcp.load(state, storage_reader=reader)
    elif run["stock"]:
        dcp.load(state, checkpoint_id=run["stock"])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return found, state["progress"]["step"]


def train(run: dict) -> None:
    """One rank's."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(size)  # another start each time: what is loaded must replace it
    model, optimizer = build(run["way"], size)
    with Checkpointer(every=1) as checkpointer:
        found, resumed = load(run, checkpointer, model, optimizer)
        told = {"found": found, "resumed": resumed, "source": checkpointer.restored_from}
        told["loaded"] = digest(model, optimizer)
        for step in range(resumed + 1, resumed + STEPS + 1):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(12, 7)[rank::size]).square().mean().backward()
            optimizer.step()
            writer = Writer(checkpointer, step, metrics={"loss": step / 8, "rank": rank})
            dcp.save(state_of(model, optimizer, step), storage_writer=writer)
        if run["export"]:
            dcp.save(state_of(model, optimizer, step), checkpoint_id=run["export"])
        told["ended"] = digest(model, optimizer)
        assert checkpointer.wait(step, run["level"], timeout=60)
    if rank == 0:
        pathlib.Path(run["result"]).write_text(json.dumps(told))


def main() -> None:
    """Fork the ranks of the run, and wait for them."""
    for run in json.loads(sys.argv[1]):
        codes = forked_ranks.run(run["ranks"], functools.partial(train, run))
        assert not any(codes), codes


if __name__ == "__main__":
    main()
