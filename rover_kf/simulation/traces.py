# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders of measurements → tables, work and arrivals.

A folder that holds ``placements.csv`` (placement, local_bsz, step_time, sync_time; one digit a
node: the replicas on it) is a model. Beside it may stand ``scalability.csv`` (num_nodes,
num_replicas and the same) and ``validation-B.csv`` (progress, grad_sqr, grad_var at global batch
B, one row an epoch). A folder named ``workloads`` holds workload-*.csv (name, time, application,
num_replicas, batch_size).

How many steps a training takes at a global batch follows from how far measured trainings got. A
step at batch B advances as many steps of the smallest batch b as the gradient's noise lets it:
(var + sqr) / (var b / B + sqr).
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
import pathlib
import re
from collections.abc import Mapping

from rover_kf.simulation.step_time_tables import NoTables, StepTable, StepTimeRow


@dataclasses.dataclass(frozen=True, slots=True)
class Epoch:
    """The end of an epoch of a measured training."""

    progress: float
    """Steps of the smallest batch that it was worth, since the beginning."""
    grad_sqr: float
    grad_var: float


class TrainingWork:
    """The trainings of one model, by their global batches."""

    def __init__(self, epochs: Mapping[int, tuple[Epoch, ...]]) -> None:
        self._epochs = dict(sorted(epochs.items()))
        self._batches = tuple(self._epochs)
        self._count = min(len(rows) for rows in self._epochs.values())

    @property
    def smallest(self) -> int:
        """Smallest global batch that was measured."""
        return self._batches[0]

    @property
    def largest(self) -> int:
        """Largest global batch that was measured."""
        return self._batches[-1]

    def steps(self, global_batch: float) -> float:
        """Steps from the beginning to the end at that batch."""
        done, total = 0.0, 0.0
        for epoch in range(self._count):
            until = min(rows[epoch].progress for rows in self._epochs.values())
            total += max(0.0, until - done) / self._gain(global_batch, epoch)
            done = max(done, until)
        return total

    def _gain(self, global_batch: float, epoch: int) -> float:
        batch = min(max(global_batch, self.smallest), self.largest)
        high = bisect.bisect_left(self._batches, batch)
        upper = self._batches[high]
        lower = self._batches[max(high - 1, 0)] if upper > batch else upper
        part = (batch - lower) / (upper - lower) if upper > lower else 0.0
        one, two = self._epochs[lower][epoch], self._epochs[upper][epoch]
        sqr = one.grad_sqr + part * (two.grad_sqr - one.grad_sqr)
        var = one.grad_var + part * (two.grad_var - one.grad_var)
        scale = batch / self.smallest
        return (var + sqr) / (var / scale + sqr)


PLACEMENTS, SCALABILITY, WORKLOADS = "placements.csv", "scalability.csv", "workloads"


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A job of a workload, as its user submits it."""

    name: str
    arrived_at: float
    """Seconds since the first."""
    model: str
    replicas: int
    """That the user asks for."""
    global_batch: int


@dataclasses.dataclass(frozen=True, slots=True)
class Traces:
    """Everything that a folder holds."""

    tables: dict[str, StepTable]
    work: dict[str, TrainingWork]
    workloads: dict[str, tuple[Arrival, ...]]


def read(folder: pathlib.Path) -> Traces:
    """Read all tables at any depth below a folder, or raise NoTables."""
    homes = sorted(path.parent for path in folder.rglob(PLACEMENTS))
    if not homes:
        raise NoTables(f"{folder} holds no {PLACEMENTS}: give a folder of measured tables")
    names = {home: home.name for home in homes}
    if len(set(names.values())) < len(homes):
        names = {home: "/".join(home.relative_to(folder).parts) for home in homes}
    tables = {name: StepTable(name, _rows(home)) for home, name in names.items()}
    work = {name: found for home, name in names.items() if (found := _work(home))}
    found_loads = [path for path in sorted(folder.rglob("*.csv")) if path.parent.name == WORKLOADS]
    return Traces(tables, work, {path.stem: _arrivals(path) for path in found_loads})


def _rows(folder: pathlib.Path) -> list[StepTimeRow]:
    rows = []
    for line in _lines(folder / PLACEMENTS):
        placement = tuple(int(digit) for digit in line["placement"])
        size = (len(placement), sum(placement))
        rows.append(StepTimeRow(*size, *_numbers(line), placement))
    if (folder / SCALABILITY).exists():
        for line in _lines(folder / SCALABILITY):
            size = (int(line["num_nodes"]), int(line["num_replicas"]))
            rows.append(StepTimeRow(*size, *_numbers(line)))
    return [row for row in rows if row.seconds > 0]


def _numbers(line: dict[str, str]) -> tuple[float, float, float]:
    batch, seconds = float(line["local_bsz"]), float(line["step_time"])
    return batch, seconds, float(line.get("sync_time") or 0.0)


def _work(folder: pathlib.Path) -> TrainingWork | None:
    epochs = {}
    for path in folder.glob("validation-*.csv"):
        if found := re.fullmatch(r"validation-(\d+)", path.stem):
            epochs[int(found[1])] = tuple(
                Epoch(float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"]))
                for row in _lines(path)
            )
    return TrainingWork(epochs) if epochs else None


def _arrivals(path: pathlib.Path) -> tuple[Arrival, ...]:
    found = []
    for row in _lines(path):
        replicas, batch = int(row["num_replicas"]), int(row["batch_size"])
        at, model = float(row["time"]), row["application"]
        found.append(Arrival(row["name"], at, model, replicas, batch))
    return tuple(found)


def _lines(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
