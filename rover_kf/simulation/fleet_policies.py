# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policies for a cluster, ours and those that it is compared with, and runs under them.

Ours is the controller's decision, job by job (``controlled``); the oracle shares the cluster among
all jobs each interval by what they are truly worth. Optimus and Pollux are given the true tables
instead of what they would fit, which makes them stronger. Some look at the jobs one by one, in the
order of arrival.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rover_kf.scaling.fair_sharing import Claim, allocate
from rover_kf.simulation.cluster_simulation import (
    ClusterShape,
    FleetJob,
    FleetOutcome,
    FleetPolicy,
    run_fleet,
)
from rover_kf.simulation.controller_policy import ControllerPolicy
from rover_kf.simulation.traces import Traces

PACE = 300.0
"""Seconds between two looks at a job that may grow."""


class ShapedFleetPolicy:
    """A policy that reckons with the cluster's shape."""

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape


class StaticFleetPolicy(ShapedFleetPolicy):
    """What users ask for, in the order of arrival where there is room; nobody is preempted."""

    packs = True

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:  # noqa: ARG002 - as the protocol has it
        """Keep who runs; start who fits."""
        sizes = {job.name: job.replicas for job in jobs}
        free = self._shape.capacity - sum(sizes.values())
        for job in jobs:
            wanted = self.start(job)
            if not sizes[job.name] and wanted <= free:
                sizes[job.name] = wanted
                free -= wanted
        return sizes

    def start(self, job: FleetJob) -> int:
        """Replicas to begin with."""
        return min(job.arrival.replicas, self._shape.capacity)


class GrowingFleetPolicy(StaticFleetPolicy):
    """Starts as static, then looks at each job every PACE seconds and lets it grow into room."""

    def __init__(self, shape: ClusterShape) -> None:
        super().__init__(shape)
        self._last_growth: dict[str, float] = {}

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """As static, and growth where there is room."""
        sizes = dict(super().allocate(jobs, now))
        free = self._shape.capacity - sum(sizes.values())
        for job in jobs:
            looked = self._last_growth.setdefault(job.name, now)
            if job.replicas and now - looked >= PACE:
                self._last_growth[job.name] = now
                most = min(self.desired_replicas(job), job.replicas + free)
                fits = (k for k in job.allowed_sizes(self._shape.capacity) if k <= most)
                size = max(fits, default=job.replicas)
                if size > job.replicas:
                    free -= size - job.replicas
                    sizes[job.name] = size
        return sizes

    def desired_replicas(self, job: FleetJob) -> int:
        """Replicas that the job should grow to."""
        raise NotImplementedError


class UtilizationFleetPolicy(GrowingFleetPolicy):
    """A HorizontalPodAutoscaler a job, target 80 % of a utilisation that reads 100 %."""

    def start(self, job: FleetJob) -> int:  # noqa: ARG002 - as the others have it
        """One."""
        return 1

    def desired_replicas(self, job: FleetJob) -> int:
        """The next size that is not below ceil(current / 0.8)."""
        least = math.ceil(job.replicas / 0.8)
        sizes = job.allowed_sizes(self._shape.capacity)
        return next((size for size in sizes if size >= least), sizes[-1])


class SpeedRatioFleetPolicy(GrowingFleetPolicy):
    """DLRover's heuristics: from what the user asks for, grow while it brings a fifth."""

    def __init__(self, shape: ClusterShape) -> None:
        super().__init__(shape)
        self._before: dict[str, tuple[int, float]] = {}

    def desired_replicas(self, job: FleetJob) -> int:
        """At most 8 more or twice as many, unless the last growth brought too little."""
        rate, present = 1.0 / job.step_seconds(job.placement), job.replicas
        replicas, old = self._before.get(job.name, (present, rate))
        if present > replicas and (rate - old) / (present - replicas) / (old / replicas) < 0.2:  # noqa: PLR2004 - DLRover's
            return present
        self._before[job.name] = (present, rate)
        return min(2 * present, present + 8)


class TiresiasFleetPolicy(ShapedFleetPolicy):
    """Two queues by attained service (16 GPU-hours), users' replicas, preemption."""

    packs = False
    LIMIT = 16 * 3600.0

    def __init__(self, shape: ClusterShape) -> None:
        super().__init__(shape)
        self._second: dict[str, None] = {}
        self._served: collections.Counter[str] = collections.Counter()
        self._running: set[str] = set()
        self._last = 0.0

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """First queue first, each in order; who does not fit waits, later ones may pass."""
        asked = {job.name: job.arrival.replicas for job in jobs}
        for name in self._running & asked.keys():
            self._served[name] += int((now - self._last) * asked[name])
            if self._served[name] >= self.LIMIT:
                self._second.setdefault(name)
        first = [name for name in asked if name not in self._second]
        second = [name for name in self._second if name in asked]
        free, sizes = self._shape.capacity, dict.fromkeys(asked, 0)
        for name in (*first, *second):
            if asked[name] <= free:
                sizes[name] = asked[name]
                free -= asked[name]
        self._running, self._last = {name for name, size in sizes.items() if size}, now
        return sizes


class OptimusFleetPolicy(ShapedFleetPolicy):
    """Optimus with the true tables and the true work left: the greatest gain of time per replica.

    It may give any number of replicas, and does not reckon with restarts.
    """

    packs = False

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:  # noqa: ARG002 - as the protocol has it
        """One each, then one by one."""
        started = jobs[: self._shape.capacity]
        sizes = {job.name: 0 for job in jobs} | {job.name: 1 for job in started}
        free = self._shape.capacity - len(started)
        steps = [(-self._gain(job, 1), i, 1) for i, job in enumerate(started)]
        heapq.heapify(steps)
        while free and steps and steps[0][0] < 0:
            _, i, size = heapq.heappop(steps)
            sizes[started[i].name] = size + 1
            free -= 1
            heapq.heappush(steps, (-self._gain(started[i], size + 1), i, size + 1))
        return sizes

    def _gain(self, job: FleetJob, size: int) -> float:
        if size + 1 > min(job.max_replicas, self._shape.capacity):
            return 0.0
        return (job.packed_seconds(size) - job.packed_seconds(size + 1)) * job.steps_left


@dataclasses.dataclass(frozen=True)
class _SpeedupClaim(Claim):
    """Pollux' fitness: the power mean -1 of speed-ups, a changed job's discounted by restarts."""

    discount: float = 1.0
    """Of the speed-up at any size but the present."""

    def value(self, replicas: int) -> float:
        """Minus the inverse of the speed-up; nothing at all is worst."""
        if not replicas:
            return -1e6
        speedup = self.rates[replicas] / self.rates[self.min_replicas]
        changed = self.present and replicas != self.present
        return -1.0 / max(speedup * (self.discount if changed else 1.0), 1e-3)


class PolluxFleetPolicy(ShapedFleetPolicy):
    """Pollux-like at a fixed batch, with the true tables and a greedy search, not a genetic one."""

    packs = True

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """The greatest fitness per replica, up to twice the largest size that a job had."""
        return allocate([self._claim(job, now) for job in jobs], self._shape.capacity)

    def _claim(self, job: FleetJob, now: float) -> Claim:
        delay, age = self._shape.restart_seconds, now - job.arrival.arrived_at
        discount = max(age - max(job.restarts, 0) * delay, 0.0) / (age + delay)
        reach = max(2 * job.replicas, 1)
        sizes = (k for k in job.allowed_sizes(self._shape.capacity) if k <= reach)
        rates = {k: 1.0 / job.packed_seconds(k) for k in sizes}
        return _SpeedupClaim(job.name, rates, job.steps_left, job.replicas, discount=discount)


class OracleFleetPolicy(ShapedFleetPolicy):
    """The allocator of rover_kf.scaling.fair_sharing, each interval, with the true tables."""

    packs = True

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:  # noqa: ARG002 - as the protocol has it
        """Share what there is among all."""
        return allocate([self._claim(job) for job in jobs], self._shape.capacity)

    def _claim(self, job: FleetJob) -> Claim:
        sizes = job.allowed_sizes(self._shape.capacity)
        return Claim(
            job.name,
            {size: 1.0 / job.packed_seconds(size) for size in sizes},
            job.steps_left,
            job.replicas,
            restart_seconds=self._shape.restart_seconds,
            waited=job.waited,
        )


FLEET_POLICIES: dict[str, Callable[[ClusterShape], FleetPolicy]] = {
    "rover": ControllerPolicy,
    "static": StaticFleetPolicy,
    "hpa": UtilizationFleetPolicy,
    "dlrover": SpeedRatioFleetPolicy,
    "optimus": OptimusFleetPolicy,
    "pollux": PolluxFleetPolicy,
    "tiresias": TiresiasFleetPolicy,
    "oracle": OracleFleetPolicy,
}
"""By the names that results go by."""


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

    def run(policy: str) -> list[FleetOutcome]:
        loads = (traces.workloads[name] for name in workloads)
        return [run_fleet(load, traces, FLEET_POLICIES[policy](shape), shape) for load in loads]

    return {policy: run(policy) for policy in policies}
