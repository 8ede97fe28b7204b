# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs alone under each policy, out of any folder of tables, and what ours saves on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rover_kf.simulation.cluster_simulation import FleetOutcome
from rover_kf.simulation.job_simulation import JobOutcome, JobScenario, run
from rover_kf.simulation.policies import POLICIES
from rover_kf.simulation.step_time_tables import StepTable

BATCHES = 5
"""Global batches of each model."""
VALUES_OF_TIME = (2.0, 8.0)
"""One minds cost, one a deadline."""
HOURS = {30.0: (1.0, 6.0), 120.0: (2.0,)}
"""Seconds of a restart → lengths of the jobs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """A policy over all cases, as cost over that of the oracle."""

    median: float
    mean: float
    p90: float
    restarts: float
    """A job, mean."""

    @classmethod
    def from_outcomes(cls, outcomes: Sequence[JobOutcome]) -> Summary:
        """Of at least one outcome."""
        costs = [outcome.over_least for outcome in outcomes]
        return cls(
            float(np.median(costs)),
            float(np.mean(costs)),
            float(np.quantile(costs, 0.9)),
            float(np.mean([outcome.restarts for outcome in outcomes])),
        )


def on_other_hardware(table: StepTable, compute: float, exchange: float) -> StepTable:
    """Return the table with other times for computing and for the exchange of gradients."""
    rows = (
        dataclasses.replace(
            row,
            seconds=max(row.seconds - row.sync, 0.0) * compute + row.sync * exchange,
            sync=row.sync * exchange,
        )
        for row in table.rows
    )
    return StepTable(table.name, rows)


def global_batches(table: StepTable, count: int) -> tuple[int, ...]:
    """Batches from what four ranks can hardly split to what a quarter of all can just hold.

    None if no size was measured packed.
    """
    if not table.sizes:
        return ()
    largest = max(table.sizes)
    low, high = 4 * table.batches[0], largest * table.sizes[largest][1] / 4
    return tuple(round(float(batch)) for batch in np.geomspace(low, max(low, high), count))


def cases(
    tables: Iterable[StepTable], restart_seconds: float, hours: Sequence[float]
) -> list[JobScenario]:
    """Jobs that have a choice: at least two sizes were measured with their batch."""
    found = [
        JobScenario(table, float(batch), value, length, restart_seconds)
        for table in tables
        for batch in global_batches(table, BATCHES)
        for value in VALUES_OF_TIME
        for length in hours
    ]
    return [case for case in found if len(case.sizes) > 1]


def single_jobs(policy: str, jobs: Sequence[JobScenario], seed: int = 0) -> Summary:
    """Run each case alone under one of POLICIES; each has its own noise after the seed."""
    maker = POLICIES[policy]
    return Summary.from_outcomes([run(case, maker(case), seed + i) for i, case in enumerate(jobs)])


def saving_interval(
    ours: FleetOutcome, theirs: FleetOutcome, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean completion saved against another policy on the same jobs, and its 95 % interval.

    Jobs are drawn with replacement. Mean, lower and upper bound are seconds; positive is faster.
    """
    pairs: Mapping[str, float] = ours.completion_seconds
    saved = np.array([theirs.completion_seconds[name] - seconds for name, seconds in pairs.items()])
    chance = np.random.default_rng(seed)
    means = saved[chance.integers(0, len(saved), (draws, len(saved)))].mean(axis=1)
    return float(saved.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
