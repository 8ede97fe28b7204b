# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Throughput before a job ever ran on more than one replica, each model predicted from the others.

A folder holds one folder a model with ``placements.csv`` (placement, local_bsz, step_time: one
digit a node, the replicas on it) and ``scalability.csv`` (num_nodes, num_replicas, local_bsz,
step_time). The predicted model gives its times on one replica and its size; the network's terms
come from the others. Perfect scaling (the step of one replica, whatever the number) is the
yardstick.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from rover_kf.recommender import communication_model
from rover_kf.recommender.communication_model import StepObservation

RANGES = {"2-4": (2, 4), "5-16": (5, 16), ">16": (17, 10**9)}
PARAMETERS = {
    "bert": 110e6,
    "cifar10": 11.2e6,
    "deepspeech2": 41e6,
    "imagenet": 25.6e6,
    "ncf": 3.3e6,
    "yolov3": 61.9e6,
}
"""Of the public tables' models (those of deepspeech2 and ncf are estimates); other folders bring a
``parameters.json`` of their own."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured configuration."""

    replicas: int
    nodes: int
    batch: int
    seconds: float


def read(folder: pathlib.Path) -> list[Row]:
    """All rows of a model's folder."""
    rows = [
        Row(sum(map(int, row["placement"])), len(row["placement"]), *_measured(row))
        for row in _rows(folder / "placements.csv")
    ]
    rows += [
        Row(int(row["num_replicas"]), int(row["num_nodes"]), *_measured(row))
        for row in _rows(folder / "scalability.csv")
    ]
    return [row for row in rows if row.seconds > 0]


def models(traces: pathlib.Path) -> dict[str, list[Row]]:
    """Every model's rows; the tables may lie in a folder ``pollux`` of the one that is given."""
    root = traces / "pollux" if (traces / "pollux").is_dir() else traces
    folders = sorted(path.parent for path in root.glob("*/placements.csv"))
    return {folder.name: read(folder) for folder in folders}


def parameters(traces: pathlib.Path) -> dict[str, float]:
    """Parameters by model."""
    own = traces / "parameters.json"
    return {**PARAMETERS, **(json.loads(own.read_text()) if own.exists() else {})}


def alone(rows: Sequence[Row], batch: int) -> float | None:
    """Seconds of a step on one replica, between the batches measured; None outside of them."""
    times: dict[int, list[float]] = {}
    for row in rows:
        if row.replicas == 1:
            times.setdefault(row.batch, []).append(row.seconds)
    points = sorted((size, statistics.median(found)) for size, found in times.items())
    for (low, first), (high, last) in itertools.pairwise(points):
        if low <= batch <= high:
            return first + (last - first) * (batch - low) / (high - low)
    return points[0][1] if points and points[0][0] == batch else None


def observations(name: str, rows: Sequence[Row], count: float) -> list[StepObservation]:
    """What a model's rows say of the network."""
    found = []
    for row in rows:
        single = alone(rows, row.batch)
        if single is not None:
            size = 4.0 * count
            found.append(StepObservation(row.seconds, single, row.replicas, row.nodes, size, name))
    return found


def measure(traces: pathlib.Path) -> dict[str, object]:
    """Errors of every model by range of replicas, and their medians over the models."""
    sizes = parameters(traces)
    seen = {
        name: observations(name, rows, sizes[name])
        for name, rows in models(traces).items()
        if name in sizes
    }
    ours: dict[str, dict[str, float]] = {}
    perfect: dict[str, dict[str, float]] = {}
    for name, own in seen.items():
        learned = communication_model.fit(
            row for other in seen if other != name for row in seen[other]
        )
        if learned is None:
            continue
        ours[name] = _errors(own, lambda row, terms=learned: _predicted(terms, row))
        perfect[name] = _errors(own, lambda row: row.alone_seconds)
    return {
        "models": ours,
        "median": _medians(ours.values()),
        "perfect_scaling": _medians(perfect.values()),
        "left_out": sorted(set(models(traces)) - set(seen)),
    }


def _predicted(learned: communication_model.CommunicationModel, row: StepObservation) -> float:
    return learned.step_seconds(
        row.alone_seconds,
        processes=row.processes,
        nodes=row.nodes,
        gradient_bytes=row.gradient_bytes,
    )


def _errors(rows: Iterable[StepObservation], predict: object) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in RANGES}
    for row in rows:
        for name, (low, high) in RANGES.items():
            if low <= row.processes <= high:
                found[name].append(abs(predict(row) / row.step_seconds - 1))  # type: ignore[operator]
    return {name: statistics.fmean(errors) for name, errors in found.items() if errors}


def _medians(errors: Iterable[dict[str, float]]) -> dict[str, float]:
    each = list(errors)
    found = {name: [one[name] for one in each if name in one] for name in RANGES}
    return {
        name: statistics.median(values) if values else math.nan for name, values in found.items()
    }


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _measured(row: dict[str, str]) -> tuple[int, float]:
    return int(row["local_bsz"]), float(row["step_time"])
