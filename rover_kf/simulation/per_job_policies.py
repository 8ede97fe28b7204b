# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that look at a cluster's jobs one by one, in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rover_kf.simulation.cluster_simulation import ClusterShape, FleetJob

PACE = 300.0
"""Seconds between two looks at a job that may grow."""


def allowed_sizes(job: FleetJob, capacity: int) -> list[int]:
    """Replicas that a job may have: up to a node any number, then whole nodes."""
    most, node = min(job.max_replicas, capacity, job.table.most_ranks), job.table.per_host
    small = range(1, min(node, most) + 1)
    return [*small, *range(2 * node, most + 1, node)]


class StaticFleetPolicy:
    """What users ask for, in the order of arrival where there is room; nobody is preempted."""

    packs = True

    def __init__(self, shape: ClusterShape) -> None:
        self._shape = shape

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
                fits = [
                    k
                    for k in allowed_sizes(job, self._shape.capacity)
                    if k <= self.desired_replicas(job)
                ]
                size = max((k for k in fits if k - job.replicas <= free), default=job.replicas)
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
        sizes = allowed_sizes(job, self._shape.capacity)
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
