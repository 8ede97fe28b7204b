# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policies for a cluster: ours, and those that it is compared with.

Ours is the controller's decision, job by job (``controlled``); the oracle shares the cluster among
all jobs each interval by what they are truly worth. Optimus and Pollux are given the true tables
instead of what they would fit, which makes them stronger.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence

from rover_kf.scaling.fair_sharing import Claim, allocate
from rover_kf.simulation.cluster_simulation import ClusterShape, FleetJob, FleetPolicy
from rover_kf.simulation.controller_policy import ControllerPolicy
from rover_kf.simulation.per_job_policies import (
    SpeedRatioFleetPolicy,
    StaticFleetPolicy,
    UtilizationFleetPolicy,
    allowed_sizes,
)


class TiresiasFleetPolicy:
    """Two queues by attained service (16 GPU-hours), users' replicas, preemption."""

    packs = False
    LIMIT = 16 * 3600.0

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape
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


class OptimusFleetPolicy:
    """Optimus with the true tables and the true work left: the greatest gain of time per replica.

    It may give any number of replicas, and does not reckon with restarts.
    """

    packs = False

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape

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


class PolluxFleetPolicy:
    """Pollux-like at a fixed batch, with the true tables and a greedy search, not a genetic one."""

    packs = True

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """The greatest fitness per replica, up to twice the largest size that a job had."""
        return allocate([self._claim(job, now) for job in jobs], self._shape.capacity)

    def _claim(self, job: FleetJob, now: float) -> Claim:
        delay, age = self._shape.restart_seconds, now - job.arrival.arrived_at
        discount = max(age - max(job.restarts, 0) * delay, 0.0) / (age + delay)
        reach = max(2 * job.replicas, 1)
        rates = {
            k: 1.0 / job.packed_seconds(k)
            for k in allowed_sizes(job, self._shape.capacity)
            if k <= reach
        }
        return _SpeedupClaim(job.name, rates, job.steps_left, job.replicas, discount=discount)


class OracleFleetPolicy:
    """The allocator of rover_kf.scaling.fair_sharing, each interval, with the true tables."""

    packs = True

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:  # noqa: ARG002 - as the protocol has it
        """Share what there is among all."""
        return allocate([self._claim(job) for job in jobs], self._shape.capacity)

    def _claim(self, job: FleetJob) -> Claim:
        sizes = allowed_sizes(job, self._shape.capacity)
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
