# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Many jobs on one cluster, from the first arrival to the last end; the clock goes in intervals.

A job trains at its own global batch, cut into micro-batches where a replica's share does not fit.
Each interval a policy says how many replicas each job has; who changes loses a restart. Nodes may
fail by chance: who trains there loses the work since its last checkpoint and a restart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from rover_kf.simulation.step_time_tables import StepTable
from rover_kf.simulation.traces import Arrival, Traces

Hosts = tuple[tuple[int, int], ...]
"""(node, replicas there)."""


def _take_nodes(free: dict[int, int], size: int, *, packs: bool) -> Hosts:
    """Take room for one job."""
    taken: dict[int, int] = {}
    while size:
        fitting = [node for node, room in free.items() if room >= size]
        if packs and fitting:
            node = min(fitting, key=lambda n: free[n])
        else:
            node = max(free, key=lambda n: free[n])
        count = min(free[node], size)
        taken[node] = taken.get(node, 0) + count
        free[node] -= count
        size -= count
    return tuple(sorted(taken.items()))


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterShape:
    """The cluster and what its jobs suffer."""

    nodes: int = 16
    per_node: int = 4
    interval_seconds: float = 60.0
    restart_seconds: float = 30.0
    node_failures_a_day: float = 0.0
    """Of one node, on average."""
    lost_seconds: float = 60.0
    """Work that a failure loses: half the time between two checkpoints."""
    seed: int = 0

    @property
    def capacity(self) -> int:
        """Replicas that fit."""
        return self.nodes * self.per_node

    def assign(
        self, sizes: Mapping[str, int], before: Mapping[str, Hosts], *, packs: bool
    ) -> dict[str, Hosts]:
        """Return places of all jobs, in the order of the sizes; a job of size 0 has none.

        ``packs`` places large jobs first, on whole nodes, small ones where least is left over; else
        all go on from the node with most room.
        """
        places = {
            name: before[name]
            for name, size in sizes.items()
            if size and sum(count for _, count in before.get(name, ())) == size
        }
        free = dict.fromkeys(range(self.nodes), self.per_node)
        for hosts in places.values():
            for node, count in hosts:
                free[node] -= count
        left = [name for name, size in sizes.items() if size and name not in places]
        left.sort(key=lambda name: -sizes[name] if packs else sizes[name])
        for name in left:
            places[name] = _take_nodes(free, sizes[name], packs=packs)
        return places


@dataclasses.dataclass(slots=True)
class FleetJob:
    """A job in the cluster; policies read it, the cluster changes it."""

    arrival: Arrival
    table: StepTable
    steps_left: float
    hosts: Hosts = ()
    restart_left: float = 0.0
    """Seconds of a restart that are still to come."""
    restarts: int = -1
    """Changes after the first start."""
    replica_seconds: float = 0.0
    waited: float = 0.0
    """Seconds without a replica, since it had one last."""
    done_at: float | None = None

    @property
    def name(self) -> str:
        """Of the arrival."""
        return self.arrival.name

    @property
    def replicas(self) -> int:
        """That it has."""
        return sum(count for _, count in self.hosts)

    @property
    def placement(self) -> tuple[int, ...]:
        """Replicas on each of its nodes."""
        return tuple(count for _, count in self.hosts)

    @property
    def max_replicas(self) -> int:
        """Replicas that its batch can be split over; who asks for one is no distributed program."""
        if self.arrival.replicas == 1:
            return 1
        return max(1, int(self.arrival.global_batch / self.table.batches[0]))

    def allowed_sizes(self, capacity: int) -> list[int]:
        """Replicas that it may have: up to a node any number, then whole nodes."""
        most, node = min(self.max_replicas, capacity, self.table.most_ranks), self.table.per_host
        small = range(1, min(node, most) + 1)
        return [*small, *range(2 * node, most + 1, node)]

    def step_seconds(self, placement: Sequence[int]) -> float:
        """True seconds of a step of its global batch at a placement."""
        share = math.ceil(self.arrival.global_batch / sum(placement) - 1e-8)
        parts = math.ceil(share / self.table.largest_batch(placement) - 1e-8)
        seconds, sync = self.table.times(placement, math.ceil(share / parts - 1e-8))
        return seconds + (seconds - sync) * (parts - 1)

    def packed_seconds(self, replicas: int) -> float:
        """The same on as few nodes as hold the replicas."""
        return self.step_seconds(self.table.packed(replicas))


class FleetPolicy(Protocol):
    """Shares a cluster; one instance a run."""

    packs: bool
    """Whether large jobs are placed first, on whole nodes."""

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """Replicas of each job, in the order of arrival; together at most the capacity."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class FleetOutcome:
    """How a workload went."""

    completion_seconds: Mapping[str, float]
    """From arrival to end, by job."""
    makespan_seconds: float
    replica_hours: float
    restarts: float
    """A job, mean."""
    in_use: tuple[tuple[float, float, int], ...]
    """(from, to, replicas that jobs had), where that number changed."""

    @property
    def average_seconds(self) -> float:
        """Mean completion."""
        return float(np.mean(list(self.completion_seconds.values())))

    @property
    def p99_seconds(self) -> float:
        """99th percentile of completion."""
        return float(np.quantile(list(self.completion_seconds.values()), 0.99))


def run_fleet(
    arrivals: Iterable[Arrival], traces: Traces, policy: FleetPolicy, shape: ClusterShape
) -> FleetOutcome:
    """Run a workload, in the order of time, to the end of its last job."""
    jobs = [_job(arrival, traces) for arrival in arrivals]
    chance = np.random.default_rng(shape.seed)
    in_use: list[tuple[float, float, int]] = []
    now = 0.0
    while any(job.done_at is None for job in jobs):
        for job in jobs:
            if job.done_at is None and job.arrival.arrived_at <= now:
                _advance(job, now, shape.interval_seconds)
        now += shape.interval_seconds
        active = [job for job in jobs if job.done_at is None and job.arrival.arrived_at <= now]
        if not active:
            following = min((j.arrival.arrived_at for j in jobs if j.done_at is None), default=now)
            now = max(now, following // shape.interval_seconds * shape.interval_seconds)
            continue
        _fail(active, chance, shape)
        _reallocate(active, policy, now, shape)
        _count(in_use, now, shape.interval_seconds, sum(job.replicas for job in active))
    return _outcome(jobs, in_use)


def _job(arrival: Arrival, traces: Traces) -> FleetJob:
    steps = traces.work[arrival.model].steps(arrival.global_batch)
    return FleetJob(arrival, traces.tables[arrival.model], steps)


def _advance(job: FleetJob, now: float, seconds: float) -> None:
    """Let a job train for an interval; it may end inside of it."""
    if not job.hosts:
        job.waited += seconds
        return
    delay = min(job.restart_left, seconds)
    job.restart_left -= delay
    step = job.step_seconds(job.placement)
    trained = min(seconds - delay, job.steps_left * step)
    job.steps_left -= trained / step
    job.replica_seconds += (delay + trained) * job.replicas
    if job.steps_left <= 1e-6:  # noqa: PLR2004 - nothing is left but rounding
        job.done_at = now + delay + trained
        job.hosts = ()


def _fail(jobs: Sequence[FleetJob], chance: np.random.Generator, shape: ClusterShape) -> None:
    if not shape.node_failures_a_day:
        return
    share = shape.node_failures_a_day * shape.interval_seconds / 86400.0
    failed = {node for node in range(shape.nodes) if chance.random() < share}
    for job in jobs:
        if any(node in failed for node, _ in job.hosts):
            job.steps_left += shape.lost_seconds / job.step_seconds(job.placement)
            job.restart_left = shape.restart_seconds


def _reallocate(
    jobs: Sequence[FleetJob], policy: FleetPolicy, now: float, shape: ClusterShape
) -> None:
    sizes = policy.allocate(jobs, now)
    before = {job.name: job.hosts for job in jobs}
    places = shape.assign(sizes, before, packs=policy.packs)
    for job in jobs:
        hosts = places.get(job.name, ())
        if hosts == job.hosts:
            continue
        if hosts:
            job.restart_left, job.waited = shape.restart_seconds, 0.0
            job.restarts += 1
        job.hosts = hosts


def _count(in_use: list[tuple[float, float, int]], now: float, lasts: float, number: int) -> None:
    """Join an interval to the one before, if as many replicas are in use."""
    start = now
    if in_use and in_use[-1][1:] == (now, number):
        start = in_use.pop()[0]
    in_use.append((start, now + lasts, number))


def _outcome(jobs: Sequence[FleetJob], in_use: Sequence[tuple[float, float, int]]) -> FleetOutcome:
    ends = {job.name: (job.done_at or 0.0) for job in jobs}
    return FleetOutcome(
        {job.name: ends[job.name] - job.arrival.arrived_at for job in jobs},
        max(ends.values(), default=0.0),
        sum(job.replica_seconds for job in jobs) / 3600.0,
        float(np.mean([max(0, job.restarts) for job in jobs])) if jobs else 0.0,
        tuple(in_use),
    )
