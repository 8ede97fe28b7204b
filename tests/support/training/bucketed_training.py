# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that train a model of several gradient buckets, and kill themselves after a saved step.

Run as a script it forks the ranks of a world for each line of its standard input, JSON: {"ranks":
[environment, …], "way": a name in WAYS, "steps": to train, "dies": step after whose save all ranks
are killed, or 0, "result": folder of each rank's digest of its final state}.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import signal
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from rover_kf import Checkpointer
from tests.support.process_pool import forked_ranks

WIDTH, DEPTH, CLASSES, BATCH = 48, 6, 10, 8
BUCKET_MIB = 0.02
"""Two layers fill a bucket."""


class Reordered(nn.Module):
    """A network that runs its layers in another order than it defines them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[1::2]:
            batch = layer(batch).relu()
        for layer in self.layers[::2]:
            batch = layer(batch).relu()
        return self.head(batch)


def _network() -> nn.Module:
    layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def _hooked(hook: Callable[..., object], network: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MIB)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def _ddp(network: nn.Module, **options: bool) -> nn.Module:
    return DistributedDataParallel(network, bucket_cap_mb=BUCKET_MIB, **options)


def _sharded(shape: tuple[int, ...], network: nn.Module) -> nn.Module:
    names = ("replica", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in network.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


WAYS: dict[str, Callable[[], nn.Module]] = {
    "ddp": lambda: _ddp(_network()),
    "reordered": lambda: _ddp(Reordered()),
    "wrapped_late": _network,
    "accumulated": lambda: _ddp(_network()),
    "static_graph": lambda: _ddp(_network(), static_graph=True),
    "unused_parameters": lambda: _ddp(_network(), find_unused_parameters=True),
    "bucket_views": lambda: _ddp(_network(), gradient_as_bucket_view=True),
    "bf16_hook": lambda: _hooked(bf16_compress_hook, _network()),
    "fsdp": lambda: _sharded((dist.get_world_size(),), _network()),
    "hsdp": lambda: _sharded((2, dist.get_world_size() // 2), _network()),
}
"""Models as they are trained, by name."""


def _batch(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed((step * 100 + part) * 100 + dist.get_rank())
    images = torch.randn(BATCH, WIDTH, generator=random)
    return images, torch.randint(0, CLASSES, (BATCH,), generator=random)


def _backward(model: nn.Module, step: int, parts: int) -> None:
    for part in range(parts):
        last = part == parts - 1
        skips = not last and isinstance(model, DistributedDataParallel)
        with model.no_sync() if skips else contextlib.nullcontext():
            images, labels = _batch(step, part)
            nn.functional.cross_entropy(model(images), labels).backward()


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found.update(local.detach().numpy().tobytes())
    return found.hexdigest()


def train(asked: dict) -> None:
    """One rank's."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = WAYS[asked["way"]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state: dict[str, object] = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer()
    parts = 3 if asked["way"] == "accumulated" else 1
    begun = checkpointer.restore(state)
    if asked["way"] == "wrapped_late":
        model = _ddp(model)
    for step in range(begun + 1, asked["steps"] + 1):
        optimizer.zero_grad()
        _backward(model, step, parts)
        optimizer.step()
        checkpointer.step(step, state, total_steps=asked["steps"])
        if step == asked["dies"]:
            checkpointer.wait(step, "memory", 60)
            os.kill(os.getpid(), signal.SIGKILL)
    moments = [value for each in optimizer.state.values() for value in each.values()]
    text = f"{begun} {_digest(model.parameters())} {_digest(moments)}"
    pathlib.Path(asked["result"], str(dist.get_rank())).write_text(text)
    checkpointer.close()
    dist.barrier()  # rank 0 has the store, which others may still ask


if __name__ == "__main__":
    forked_ranks.serve(train)
