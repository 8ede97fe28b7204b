# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far production's throughput model is off beyond what it has seen, on measured tables.

A split shows the model SEEN rows of few ranks, drawn by chance, and ALONE rows of a single one,
each as a window; then it says what steps of more ranks take. The error of a split is the mean of
|said / measured - 1| over the rows of a factor; of many splits the median counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput
from rover_kf.simulation.step_time_tables import StepTable, StepTimeRow

SEEN, ALONE = 12, 2
FACTORS = (1, 2, 4, 8, 16)
NEAR = 0.75
"""A factor's rows have at least this share of its ranks."""


def step_time_errors(table: StepTable, seeds: Iterable[int]) -> dict[int, float]:
    """Median over the seeds of the mean absolute relative error, by factor of extrapolation.

    Only factors are there that the table has rows for; each seed is a split.
    """
    base = max(1, min(table.per_host, table.most_ranks // 4))
    few = [row for row in table.rows if row.ranks <= base]
    alone = [row for row in table.rows if row.ranks == 1]
    targets = {factor: _rows_at(table, base, factor) for factor in FACTORS}
    errors: dict[int, list[float]] = {factor: [] for factor, rows in targets.items() if rows}
    for seed in seeds:
        chance = np.random.default_rng(seed)
        shown = [*_some(few, SEEN, chance), *_some(alone, ALONE, chance)]
        model = throughput.fit(_windows(shown))
        if model is None:
            continue
        for factor, found in errors.items():
            rows = [row for row in targets[factor] if row not in shown]
            if rows:
                found.append(float(np.mean([_error(model, row) for row in rows])))
    return {factor: float(np.median(found)) for factor, found in errors.items() if found}


def _rows_at(table: StepTable, base: int, factor: int) -> list[StepTimeRow]:
    if factor == 1:
        return [row for row in table.rows if row.ranks <= base]
    most = factor * base
    return [row for row in table.rows if math.ceil(NEAR * most) <= row.ranks <= most]


def _some(
    rows: Sequence[StepTimeRow], count: int, chance: np.random.Generator
) -> list[StepTimeRow]:
    places = chance.permutation(len(rows))[:count]
    return [rows[place] for place in places]


def _windows(rows: Sequence[StepTimeRow]) -> list[Throughput]:
    return [
        Throughput(
            60.0 * i, 60.0 * (i + 1), row.hosts, row.ranks, 1, 0, row.seconds, row.batch * row.ranks
        )
        for i, row in enumerate(rows)
    ]


def _error(model: throughput.ThroughputModel, row: StepTimeRow) -> float:
    said = model.step_seconds(row.ranks, global_batch=row.batch * row.ranks, nodes=row.hosts)
    return abs(said / row.seconds - 1.0)
