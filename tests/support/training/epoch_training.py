# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training with code after each epoch's loop: a schedule, a validation and early stopping.

Run as a script it forks the ranks of a world for each line of its standard input, JSON: {"ranks":
[environment, …], "ends": "" | "kill" | "drain", "at": the step after whose save all ranks end,
"result": path for what rank 0 has at the end}.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader, Dataset

from rover_kf import Checkpointer, ElasticDataLoader, ElasticSampler
from rover_kf.api import names
from tests.support.process_pool import forked_ranks

SAMPLES, BATCH, EPOCHS = 36, 12, 3
STEPS = SAMPLES // BATCH
"""Of an epoch."""
PATIENCE = 2

Bits = dict[str, Any]


class Points(Dataset):
    """A point, and a number that belongs to it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        point = torch.randn(4, generator=generator)
        return point, point.sum().sin() + torch.randn(1, generator=generator)


class Training:
    """What an epoch changes, and its end."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.3)
        self.stopping: dict[str, float] = {"best": 1e9, "bad": 0}
        self.log: dict[str, list[float]] = {"rates": [], "validations": [], "samples": [0]}

    def state(self, place: object) -> dict[str, object]:
        """As a Checkpointer is given it."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {**parts, "stopping": self.stopping, "log": self.log, "place": place}

    def loss(self, batch: Sequence[torch.Tensor], weight: float) -> torch.Tensor:
        """Of this rank's part of a step."""
        points, numbers = batch
        return torch.nn.functional.mse_loss(self.model(points), numbers) * weight

    def update(self, samples: int) -> None:
        """Take the step whose gradients are there."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log["samples"][0] += samples

    def end_epoch(self) -> None:
        """The code after the epoch's loop."""
        self.schedule.step()
        self.log["rates"].append(self.optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            points, numbers = next(iter(DataLoader(Points(), SAMPLES)))
            found = torch.nn.functional.mse_loss(self.model(points), numbers).item()
        self.log["validations"].append(found)
        better = found < self.stopping["best"] - 1e-4
        self.stopping["bad"] = 0 if better else self.stopping["bad"] + 1
        self.stopping["best"] = min(found, self.stopping["best"])

    @property
    def stops(self) -> bool:
        """Whether validations have become no better for long enough."""
        return self.stopping["bad"] >= PATIENCE

    def bits(self) -> Bits:
        """All that must be equal."""
        tensors = [*self.model.parameters()]
        tensors += [value["momentum_buffer"] for value in self.optimizer.state.values()]
        values = [number.hex() for tensor in tensors for number in tensor.flatten().tolist()]
        return {"values": values, "log": copy.deepcopy(self.log)}


class Ended(Exception):
    """The process of a simulated life has."""


def live(world: int, saved: Bits | None, on_step: Callable[[int, Bits], None]) -> Bits:
    """Train in this process as ranks of a world would, one loader a rank.

    Args:
        world: its size.
        saved: what ``on_step`` was given; None: the training begins.
        on_step: is called where a loop's body saves; whatever it raises ends the life.
    """
    training = Training()
    loaders = [
        ElasticDataLoader(Points(), BATCH, rank=rank, world_size=world) for rank in range(world)
    ]
    step = _restore(training, loaders, saved)
    while loaders[0].epoch < EPOCHS and not training.stops:
        for parts in zip(*loaders, strict=True):
            for batch, loader in zip(parts, loaders, strict=True):
                (training.loss(batch, loader.weight) / world).backward()
            training.update(sum(len(part[0]) for part in parts))
            step += 1
            on_step(step, _snapshot(training, loaders[0], step))
        training.end_epoch()
    return training.bits()


def live_by_sampler(world: int, saved: Bits | None, on_step: Callable[[int, Bits], None]) -> Bits:
    """As ``live``, by DataLoaders with an ElasticSampler."""
    training = Training()
    samplers = [
        ElasticSampler(Points(), BATCH, rank=rank, world_size=world) for rank in range(world)
    ]
    step = _restore(training, samplers, saved)
    loaders = [DataLoader(Points(), s.rank_batch_size, sampler=s) for s in samplers]
    while samplers[0].epoch < EPOCHS and not training.stops:
        for parts in zip(*loaders, strict=True):
            for batch in parts:
                (training.loss(batch, 1.0) / world).backward()
            training.update(sum(len(part[0]) for part in parts))
            for sampler in samplers:
                sampler.advance()
            step += 1
            on_step(step, _snapshot(training, samplers[0], step))
        training.end_epoch()
    return training.bits()


def _restore(training: Training, places: Sequence[Any], saved: Bits | None) -> int:
    if saved is None:
        return 0
    kept = copy.deepcopy(saved)
    for name in ("model", "optimizer", "schedule"):
        getattr(training, name).load_state_dict(kept[name])
    training.stopping, training.log = kept["stopping"], kept["log"]
    for place in places:
        place.load_state_dict(kept["place"])
    return int(kept["step"])


def _snapshot(training: Training, place: object, step: int) -> Bits:
    found: Bits = {"step": step}
    for name, value in training.state(place).items():
        state_dict = getattr(value, "state_dict", None)
        found[name] = copy.deepcopy(state_dict() if state_dict else value)
    return found


def train(asked: dict[str, Any]) -> None:
    """One rank's process."""
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    drain = pathlib.Path(os.environ[names.ENV_HOME]) / names.DRAIN_FILE
    drain.parent.mkdir(exist_ok=True)
    drain.write_bytes((asked["at"] if asked["ends"] == "drain" else 0).to_bytes(8, "little"))
    training = Training()
    loader = ElasticDataLoader(Points(), BATCH)
    state = training.state(loader)
    checkpointer = Checkpointer(every=1)
    step = checkpointer.restore(state)
    while loader.epoch < EPOCHS and not training.stops:
        for batch in loader:
            training.loss(batch, loader.weight).backward()
            for parameter in training.model.parameters():
                _average(parameter.grad, world)
            training.update(BATCH)
            step += 1
            checkpointer.step(step, state)
            if (asked["ends"], asked["at"]) == ("kill", step):
                checkpointer.wait(step, "memory", 60)
                _await_others(world)
                os.kill(os.getpid(), signal.SIGKILL)
        training.end_epoch()
    if os.environ["RANK"] == "0":
        pathlib.Path(asked["result"]).write_text(json.dumps(training.bits()))
    checkpointer.close()


def _await_others(world: int) -> None:
    """Rank 0 serves the store, so it may only die after every other rank has used it."""
    if world == 1:
        return
    store, rank = distributed_c10d._get_default_store(), dist.get_rank()
    if rank:
        store.set(f"saved/{rank}", "")  # the kernel sends it, even for a process that has died
    else:
        store.wait([f"saved/{other}" for other in range(1, world)])


def _average(gradient: torch.Tensor | None, world: int) -> None:
    assert gradient is not None
    if world > 1:
        dist.all_reduce(gradient)
        gradient /= world


if __name__ == "__main__":
    forked_ranks.serve(train)
