# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job alone, from its first step to its last, under a policy; the clock is virtual.

The job splits a fixed global batch over its replicas. Each window it is measured with noise and the
policy is asked. A change costs a restart, in which the replicas of the new size do nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rover_kf.api.samples import Throughput
from rover_kf.metrics.windows import keep_recent
from rover_kf.scaling.scaling_state import JobObservation
from rover_kf.simulation.step_time_tables import StepTable


class JobPolicy(Protocol):
    """Decides on one job's replicas; one instance a job."""

    def begin(self) -> int:
        """Replicas to begin with."""
        ...

    def target(self, seen: JobObservation, now: float) -> int:
        """Replicas that the job should have; the present number to stay."""
        ...

    def changed(self, now: float) -> None:
        """What target said is being done."""
        ...


@dataclasses.dataclass(frozen=True)
class JobScenario:
    """A job and what its time and replicas cost."""

    table: StepTable
    global_batch: float
    value_of_time: float
    """Price of waiting, in replicas."""
    hours: float
    """That the work takes at the size of least cost."""
    restart_seconds: float
    window_seconds: float = 60.0
    noise: float = 0.03
    """Standard deviation of a window's measured step time, relative."""

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Replicas that the job may have."""
        return self.table.sizes_for(self.global_batch)

    @functools.cached_property
    def best(self) -> int:
        """The size of least cost, by the table."""
        return min(self.sizes, key=self.price)

    @functools.cached_property
    def steps(self) -> float:
        """Of the whole work."""
        return self.hours * 3600.0 / self.step_seconds(self.best)

    @property
    def least_cost(self) -> float:
        """Of the best size from the first step to the last: what the table's owner would pay."""
        return self.steps * self.price(self.best)

    def step_seconds(self, replicas: int) -> float:
        """True seconds of a step."""
        return self.table.step_seconds(replicas, self.global_batch)

    def price(self, replicas: int) -> float:
        """Replica-seconds, and the price of waiting, for a step."""
        return self.step_seconds(replicas) * (replicas + self.value_of_time)


@dataclasses.dataclass(frozen=True, slots=True)
class JobOutcome:
    """How it went."""

    cost: float
    """Replica-seconds, and the price of waiting."""
    over_least: float
    """Cost over the least there is."""
    seconds: float
    restarts: int
    sizes: tuple[int, ...]
    """In their order in time."""


def run(case: JobScenario, policy: JobPolicy, seed: int) -> JobOutcome:
    """Train the job to its end, with noise of a seed; the policy decides after each window."""
    noise = np.random.default_rng(seed)
    replicas = policy.begin()
    now = cost = done = restart = 0.0
    sizes: list[int] = [replicas]
    windows: list[Throughput] = []
    while True:
        seconds = case.step_seconds(replicas)
        length = min(case.window_seconds, (case.steps - done) * seconds)
        now, done = now + length, done + length / seconds
        cost += length * (replicas + case.value_of_time)
        if done >= case.steps * (1 - 1e-9):
            return JobOutcome(cost, cost / case.least_cost, now, len(sizes) - 1, tuple(sizes))
        measured = seconds * max(0.5, 1 + case.noise * noise.standard_normal())
        windows = keep_recent([*windows, _window(case, replicas, now - length, now, measured)])
        seen = JobObservation(
            replicas=replicas,
            masters=0,
            steady=True,
            windows=tuple(windows),
            step=int(done),
            total_steps=max(1, int(case.steps)),
            restart_seconds=restart,
        )
        target = policy.target(seen, now)
        if target != replicas:
            policy.changed(now)
            restart = case.restart_seconds
            now, replicas = now + restart, target
            cost += restart * (replicas + case.value_of_time)
            sizes.append(replicas)


def _window(
    case: JobScenario, replicas: int, start: float, end: float, seconds: float
) -> Throughput:
    steps = max(1, int((end - start) / seconds))
    samples = int(steps * case.global_batch)
    return Throughput(start, end, replicas, replicas, steps, samples, seconds, case.global_batch)


PolicyFactory = Callable[[JobScenario], JobPolicy]
