# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod of several DDP ranks that save at the same time.

``make bench-checkpoint-pods`` writes build/bench/checkpoint-pods.json and prints a table. Each pass
has a pod of its own: a sidecar as in the cluster, and a process a rank. All ranks save at the same
time and copy at once; before each save every rank copies the same bytes flat, all of them together,
which is the floor of a copy a rank. The restore is of new processes, from the pod's memory. Of
ranks the slowest counts.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from benchmarks.checkpoint_systems import memory, shape
from benchmarks.checkpoint_systems.sidecar import Sidecar
from benchmarks.checkpoint_systems.workload import Loop
from rover_kf.api.policy import CheckpointPolicy
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer

FIRST = 2
"""Saves of each pass that are not counted: slots are made and the state becomes known."""
NEVER = 1e8


class BenchmarkPod:
    """A sidecar and, one after the other, two lives of its ranks.

    Args:
        given: the command line.
        folder: for its files.
    """

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path) -> None:
        self._given, self._folder = given, folder
        self._home = pathlib.Path(tempfile.mkdtemp(prefix="pods-", dir="/dev/shm"))

    def measured(self) -> dict[str, list[float]]:
        """Milliseconds of floors, saves and the restore; MiB of slots and of the sidecar."""
        policy = CheckpointPolicy(persist_seconds=NEVER, bandwidth=0)
        sidecar = Sidecar(self._home, self._folder, 64 << 30, policy)
        sidecar.start()
        try:
            found = self._life(sidecar, 1)
            slots = sum(path.stat().st_size for path in self._home.glob("arena/*/slot-*"))
            beside = sidecar.mebibytes()
            restored = self._life(sidecar, 2)
        finally:
            sidecar.kill()
            shutil.rmtree(self._home)
        mebibytes = {"slots_mib": [slots / (1 << 20)], "sidecar_mib": [beside]}
        return {**found, "restore_ms": restored["restore_ms"], **mebibytes}

    def _life(self, sidecar: Sidecar, round_: int) -> dict[str, list[float]]:
        given, meeting = self._given, self._folder / f"meeting-{round_}"
        size = given.ranks
        line = [sys.executable, __file__, "--rank", *("--mebibytes", given.mebibytes)]
        line += ["--tensors", given.tensors, "--saves", given.saves if round_ == 1 else 0]
        ranks = []
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MEETING": str(meeting)}
            world = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            environment = {**os.environ, **sidecar.trainer(round_), **own, **world}
            command = [*map(str, line)]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        told = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
        each = [json.loads(text) for text in told]
        return {key: [max(values) for values in zip(*(one[key] for one in each), strict=True)]
                for key in each[0]}  # fmt: skip


def train(given: argparse.Namespace) -> dict[str, list[float]]:
    """One rank's: what its saves took, or its restore where a pod has something."""
    meeting = f"file://{os.environ['MEETING']}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    loop = _loop(given, seed=1 if given.saves else 2)
    count = shape.state_bytes(given.mebibytes, given.tensors)
    source = torch.ones(count, dtype=torch.uint8)
    target = torch.frombuffer(mmap.mmap(-1, count), dtype=torch.uint8)
    target.copy_(source)
    checkpointer = Checkpointer(overlap=False, settings=trainer_settings.read())
    found: dict[str, list[float]] = {"floor_copy_ms": [], "save_ms": [], "restore_ms": []}
    dist.barrier()
    memory.give_back(given.mebibytes)  # the launcher forks a new process at once, not after imports
    found["restore_ms"].append(_spent(lambda: checkpointer.restore(loop.state)))
    if not given.saves:
        pairs = zip(loop.tensors(), _loop(given, seed=1).tensors(), strict=True)
        assert all(torch.equal(here, there) for here, there in pairs)
    for number in range(1, FIRST + given.saves + 1 if given.saves else 0):
        copy = _spent(lambda: target.copy_(source))
        spent = _spent(lambda number=number: checkpointer.save(number, loop.state))
        if number > FIRST:
            found["floor_copy_ms"].append(copy)
            found["save_ms"].append(spent)
    checkpointer.close()
    dist.destroy_process_group()
    return found


def _loop(given: argparse.Namespace, *, seed: int) -> Loop:
    """With an optimizer that has its moments; of one seed always the same."""
    loop = Loop(given.mebibytes, given.tensors, seed)
    loop.backward(0.0)
    loop.step()
    return loop


def _spent(work: Callable[[], object]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="of the pod")
    parser.add_argument("--mebibytes", type=int, default=256, help="of each rank's state")
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--saves", type=int, default=10, help="of each pass")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/checkpoint-pods.json")
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        print(json.dumps(train(given)))
        return
    found: dict[str, list[float]] = {}
    for _ in range(given.passes):
        with tempfile.TemporaryDirectory(prefix="pods-") as folder:
            for key, values in BenchmarkPod(given, pathlib.Path(folder)).measured().items():
                found.setdefault(key, []).extend(values)
    medians = {key: round(statistics.median(values), 1) for key, values in found.items()}
    report = {"ranks": given.ranks, "state_mib": given.mebibytes, **medians}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"a pod of {given.ranks} ranks, {given.mebibytes} MiB in {given.tensors} tensors each\n")
    print("| copies of all ranks at once | save | restore | slots, MiB | sidecar, MiB |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| {medians['floor_copy_ms']} | {medians['save_ms']} | {medians['restore_ms']} "
          f"| {medians['slots_mib']} | {medians['sidecar_mib']} |")  # fmt: skip


if __name__ == "__main__":
    main()
