# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders of measurements → tables, work and arrivals.

A folder that holds ``placements.csv`` (placement, local_bsz, step_time, sync_time; one digit a
node: the replicas on it) is a model. Beside it may stand ``scalability.csv`` (num_nodes,
num_replicas and the same) and ``validation-B.csv`` (progress, grad_sqr, grad_var at global batch
B, one row an epoch). A folder named ``workloads`` holds workload-*.csv (name, time, application,
num_replicas, batch_size).
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import re

from rover_kf.simulation.step_time_tables import NoTables, StepTable, StepTimeRow
from rover_kf.simulation.training_length import Epoch, TrainingWork

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
    """Read all tables at any depth below a folder.

    Args:
        folder: to look in.

    Raises:
        NoTables: it holds none.
    """
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
    return tuple(
        Arrival(
            row["name"],
            float(row["time"]),
            row["application"],
            int(row["num_replicas"]),
            int(row["batch_size"]),
        )
        for row in _lines(path)
    )


def _lines(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
