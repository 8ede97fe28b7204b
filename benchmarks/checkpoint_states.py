# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a save blocks for states of several kinds, all of the same bytes in as many tensors.

``make bench-checkpoint-states`` writes build/bench/checkpoint-states.json and prints a table. The
kinds take turns; before each save the same bytes are copied flat, which is the floor. Saves overlap
with training; a step is as long as 2.5 copies, as in benchmarks/checkpoint.py.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.checkpoint_systems import shape
from benchmarks.checkpoint_systems.rover import Rover
from benchmarks.checkpoint_systems.workload import Loop
from rover_kf.trainer.rng_state import Generators

COPIES_A_STEP = 2.5
FIRST = 3
"""Saves of each kind that are not counted: slots are made and the state becomes known."""


class Random(Loop):
    """With the process's random generators, whose states are new tensors each time."""

    generators = Generators()

    @property
    def state(self) -> dict[str, object]:
        """As a training script has it."""
        return {**super().state, "generators": self.generators}


class Scheduled(Loop):
    """With a scheduler that changes the rate at each step."""

    def __init__(self, mebibytes: int, tensors: int, seed: int) -> None:
        super().__init__(mebibytes, tensors, seed)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10_000)

    @property
    def state(self) -> dict[str, object]:
        """As a training script has it."""
        return {**super().state, "schedule": self._schedule}

    def step(self) -> float:
        """The optimizer's step and the schedule's."""
        spent = super().step()
        self._schedule.step()
        return spent


class Sharded(Loop):
    """By FSDP2, over this process alone: parameters and moments are DTensors."""

    def __init__(self, mebibytes: int, tensors: int, seed: int) -> None:
        super().__init__(mebibytes, tensors, seed)
        self._whole = torch.nn.Module()
        self._whole.layers = self.model
        fully_shard(self._whole, mesh=init_device_mesh("cpu", (1,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @property
    def state(self) -> dict[str, object]:
        """As a training script has it."""
        return {"model": self._whole, "optimizer": self.optimizer}


KINDS: dict[str, Callable[[int, int, int], Loop]] = {
    "module and AdamW": Loop,
    "and a schedule": Scheduled,
    "and random generators": Random,
    "sharded by FSDP2": Sharded,
}


class Floor:
    """As many bytes as the state has, flat, into a warm shared mapping."""

    def __init__(self, size: int) -> None:
        self._source = torch.ones(size, dtype=torch.uint8)
        self._target = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        self.milliseconds()

    def milliseconds(self) -> float:
        """Of one copy."""
        begun = time.perf_counter()
        self._target.copy_(self._source)
        return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--saves", type=int, default=15, help="of each kind")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/checkpoint-states.json")
    )
    given = parser.parse_args()
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "states")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = measured(given.mebibytes, given.tensors, given.saves)
    dist.destroy_process_group()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{given.mebibytes} MiB in {given.tensors} tensors: a copy {found['floor_copy_ms']} ms\n")
    print("| state | blocked by a save, median | p95 | of a copy |\n| --- | --- | --- | --- |")
    for name, one in found["states"].items():
        print(f"| {name} | {one['warm_ms']} | {one['warm_p95_ms']} | {one['warm_over_floor']} |")


def measured(mebibytes: int, tensors: int, saves: int) -> dict[str, object]:
    """All kinds in turn."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="states-"))
    floor = Floor(shape.state_bytes(mebibytes, tensors))
    peers = {}
    for name, kind in KINDS.items():
        peers[name] = Rover(overlap=True)
        (folder / name).mkdir()
        peers[name].open(kind(mebibytes, tensors, 1), folder / name)
        peers[name].loop.backward(0.0)
        peers[name].loop.step()
    blocked: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    try:
        for number in range(1, FIRST + saves + 1):
            for name, peer in peers.items():
                pair = _save(peer, number, floor)
                if number > FIRST:
                    blocked[name].append(pair)
    finally:
        for peer in peers.values():
            peer.close()
        shutil.rmtree(folder)
    copies = [copy for pairs in blocked.values() for _, copy in pairs]
    states = {name: _report(pairs) for name, pairs in blocked.items()}
    return {"floor_copy_ms": round(statistics.median(copies), 1), "states": states}


def _save(peer: Rover, number: int, floor: Floor) -> tuple[float, float]:
    """Milliseconds that a save blocks, and those of a flat copy before it."""
    copy = floor.milliseconds()
    peer.loop.backward(COPIES_A_STEP * copy)
    peer.loop.step()
    begun = time.perf_counter()
    peer.save(number)
    spent = (time.perf_counter() - begun) * 1e3
    peer.loop.backward(COPIES_A_STEP * copy)
    peer.loop.step()
    spent += peer.waited()
    peer.settle()
    return spent, copy


def _report(pairs: list[tuple[float, float]]) -> dict[str, float]:
    spent = [blocked for blocked, _ in pairs]
    return {
        "warm_ms": round(statistics.median(spent), 1),
        "warm_p95_ms": round(statistics.quantiles(spent, n=20, method="inclusive")[-1], 1),
        "warm_over_floor": round(statistics.median(b / copy for b, copy in pairs), 3),
    }


if __name__ == "__main__":
    main()
