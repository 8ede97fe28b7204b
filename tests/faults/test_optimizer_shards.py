# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's plain tensors of its rank's rows (FSDP2): refused where a rank has other rows."""

from __future__ import annotations

import os
import pathlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rover_kf import errors
from rover_kf.trainer.checkpointer import Checkpointer
from tests.support.pods import checkpoint_pod

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

ROWS = 3


class _Local(torch.optim.Optimizer):
    """Keeps momentum as a plain tensor of the local part, as many custom optimizers do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                part, gradient = parameter.to_local(), parameter.grad.to_local()
                moment = self.state[parameter].setdefault("m", torch.zeros_like(part))
                moment.mul_(0.9).add_(gradient)
                self.state[parameter]["count"] = torch.ones(1)  # about no rows


def _rank(rank: int, environments: list[dict[str, str]], folder: str) -> None:
    os.environ.update(environments[rank])
    world = len(environments)
    store = f"file://{folder}/store-{os.environ['ROVER_ROUND']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = torch.nn.Linear(2, ROWS, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = _Local(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer(every=1)
    (weight,) = model.parameters()
    try:
        started = checkpointer.restore(state)
    except errors.IncompatibleState as error:
        pathlib.Path(folder, f"{world}-{rank}").write_text(f"refused: {error}")
    else:
        if not started:
            rows = torch.arange(ROWS).repeat(2, 1).T.float()
            weight.grad = dist.tensor.distribute_tensor(rows, weight.device_mesh, weight.placements)
            optimizer.step()
            checkpointer.step(1, state)
            checkpointer.finish()
        found = optimizer.state[weight]["m"][:, 0].tolist()
        pathlib.Path(folder, f"{world}-{rank}").write_text(f"{started} {found}")
    dist.barrier()
    checkpointer.close()
    dist.destroy_process_group()


def _run(pods: list[checkpoint_pod.Pod], round_: int, folder: pathlib.Path) -> list[str]:
    world = len(pods)
    environments = [
        pod.environment(rank=rank, world_size=world, round_=round_) for rank, pod in enumerate(pods)
    ]
    torch.multiprocessing.spawn(_rank, (environments, str(folder)), world)
    return [(folder / f"{world}-{rank}").read_text() for rank in range(world)]


def test_moments_of_other_rows_are_refused(tmp_path):
    """At the same size they come back; at another one each rank that has other rows is told."""
    with checkpoint_pod.pods(tmp_path, 3) as pods:
        assert _run(pods[:2], 1, tmp_path) == ["0 [0.0, 1.0]", "0 [2.0]"]
        assert _run(pods[:2], 2, tmp_path) == ["1 [0.0, 1.0]", "1 [2.0]"]
        for told in _run(pods, 3, tmp_path):
            assert told.startswith("refused: optimizer.state.0.m is a plain tensor")
            assert "count" not in told
