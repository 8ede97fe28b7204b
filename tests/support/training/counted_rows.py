# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Training on rows of Parquet files that keeps count of them, and a journal of every step.

The state has a count for every row. It goes back with the checkpoint like a weight does, so what it
says at the end is what the surviving model was trained on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import time

import pyarrow as pa
from pyarrow import parquet

from rover_kf import ElasticDataLoader, TableRows
from rover_kf.api import codec, names
from rover_kf.api.status import Ack, ScaleRequest
from tests.support.pods.launcher_pods import Job, kill

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer, ElasticDataLoader, TableRows

def numbers(table): return torch.from_numpy(table.column("number").to_numpy().copy())

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
folder, batch, enough_at, micro, pace = sys.argv[1:]
rows = TableRows(folder, columns=["number"], as_tables=True)
loader = ElasticDataLoader(
    rows, int(batch), micro_batch_size=int(micro), seed=5, num_workers=1, collate_fn=numbers
)
counts = torch.zeros(len(rows))
torch.manual_seed(0)  # as under DistributedDataParallel, all ranks begin alike
state = {"model": torch.nn.Linear(4, 4), "loader": loader, "counts": counts}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
enough = torch.zeros(1)
while not enough:
    own = torch.zeros_like(counts)
    for indices in loader:
        # The mean's gradient by a sample is one over their number, averaged over the ranks.
        own[indices] += loader.weight / len(indices) / world * int(batch)
        if loader.accumulates:
            continue
        dist.all_reduce(own)
        used = own.nonzero().flatten().tolist()
        size = len(used)
        counts += own * size / int(batch)
        own = torch.zeros_like(counts)
        step += 1
        time.sleep(float(pace))
        if rank == 0:
            sys.stdout.write(f"samples {step} {' '.join(map(str, used))}\\n")
        sys.stdout.write(f"step {step} rank {rank} of {world} pid {os.getpid()} "
                         f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
        sys.stdout.flush()
        dist.barrier()  # no rank has saved what rank 0 has not told
        checkpointer.step(step, state, samples=size)
    enough += os.path.exists(enough_at)
    dist.broadcast(enough, 0)
if rank == 0:
    print("counts", counts.min().item(), counts.max().item(), "epochs", loader.epoch, "steps", step)
checkpointer.close()
dist.destroy_process_group()
"""
_USED = re.compile(r"^samples (\d+) ([\d ]+)$", re.MULTILINE)
_END = re.compile(r"^counts (\S+) (\S+) epochs (\d+) steps (\d+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Files of rows that are numbered from 0 on."""

    folder: pathlib.Path
    count: int
    batch: int

    def write(self, files: int, group: int) -> None:
        """Write them, so many files with so many rows a row group."""
        self.folder.mkdir()
        for file in range(files):
            begin, end = (self.count * each // files for each in (file, file + 1))
            table = pa.table({"number": range(begin, end), "rest": [b"-" * 16] * (end - begin)})
            path = self.folder / f"{file:04}.parquet"
            parquet.write_table(table, path, row_group_size=group)

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-self.count // self.batch)

    def expected(self, epochs: int) -> list[list[int]]:
        """The rows of each step, in one process that nothing ever happened to."""
        rows = TableRows(self.folder)
        loader = ElasticDataLoader(rows, self.batch, seed=5, rank=0, world_size=1, num_workers=1)
        found = []
        for epoch in range(epochs):
            loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "done": 0})
            found += [sorted(part) for part in loader.ordered()]
        return found

    def check(self, journal: str) -> tuple[int, int]:
        """Every step that was ever done had the rows that were due; those that survive have each
        row once an epoch. Returns how many steps were done, and how many count."""
        ((lowest, highest, epochs, steps),) = _END.findall(journal)
        done = _USED.findall(journal)
        due = self.expected(int(epochs))
        for step, used in done:
            assert [int(word) for word in used.split()] == due[int(step) - 1], step
        assert int(steps) == self.steps * int(epochs)
        assert {int(step) for step, _ in done} == set(range(1, int(steps) + 1))
        assert abs(float(lowest) - int(epochs)) < 1e-3 * int(epochs)
        assert abs(float(highest) - int(epochs)) < 1e-3 * int(epochs)
        print(f"{len(done)} steps were done for {steps} that count, {epochs} epochs")
        return len(done), int(steps)


def kill_some(job: Job, *pods: int) -> float:
    """SIGKILL the pods' training processes; the time, after which they step no more."""
    first, *others = [job.pods[pod].steps()[-1]["pid"] for pod in pods]
    kill(first)
    for other in others:
        with contextlib.suppress(ProcessLookupError):  # it has ended for want of the first
            kill(other)
    return time.time()


def scale(job: Job, count: int) -> bool:
    """Ask the coordinator for so many pods."""
    return codec.loads(Ack, job.ask(names.PATH_SCALE, ScaleRequest(count, "test"))).done
