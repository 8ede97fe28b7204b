# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs and clusters on which policies are compared, out of any folder of tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rover_kf.simulation.cluster_simulation import ClusterShape, FleetOutcome, run_fleet
from rover_kf.simulation.fleet_policies import FLEET_POLICIES
from rover_kf.simulation.job_simulation import JobOutcome, JobScenario, run
from rover_kf.simulation.policies import POLICIES
from rover_kf.simulation.step_time_tables import StepTable
from rover_kf.simulation.traces import Traces

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


def cases(
    tables: Iterable[StepTable], restart_seconds: float, hours: Sequence[float]
) -> list[JobScenario]:
    """Jobs that have a choice: at least two sizes were measured with their batch."""
    found = [
        JobScenario(table, float(batch), value, length, restart_seconds)
        for table in tables
        for batch in table.global_batches(BATCHES)
        for value in VALUES_OF_TIME
        for length in hours
    ]
    return [case for case in found if len(case.sizes) > 1]


def single_jobs(policy: str, jobs: Sequence[JobScenario], seed: int = 0) -> Summary:
    """Run each case alone under one of POLICIES; each has its own noise after the seed."""
    maker = POLICIES[policy]
    return Summary.from_outcomes([run(case, maker(case), seed + i) for i, case in enumerate(jobs)])


def shape_for(traces: Traces, restart_seconds: float = 30.0, nodes: int = 16) -> ClusterShape:
    """A cluster of nodes as the tables' hardware has them."""
    per_node = max(table.per_host for table in traces.tables.values())
    return ClusterShape(nodes=nodes, per_node=per_node, restart_seconds=restart_seconds)


def runnable(traces: Traces) -> list[str]:
    """Workloads all of whose models have tables and work."""
    return [
        name
        for name, arrivals in traces.workloads.items()
        if arrivals and all(a.model in traces.tables and a.model in traces.work for a in arrivals)
    ]


def fleet(
    traces: Traces, shape: ClusterShape, workloads: Sequence[str], policies: Iterable[str]
) -> dict[str, list[FleetOutcome]]:
    """Run workloads, by name, under some of FLEET_POLICIES."""
    return {
        policy: [
            run_fleet(traces.workloads[name], traces, FLEET_POLICIES[policy](shape), shape)
            for name in workloads
        ]
        for policy in policies
    }


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
