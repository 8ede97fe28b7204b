# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How several jobs share one capacity: who gets how many replicas now; pure.

What a replica is worth to a job is the share of its left work that it does in a second, times the
job's weight. The sum over jobs is weighted completions a second: a replica brings a short job
nearer to its end than a long one. First each job gets its fewest replicas, so that jobs shrink and
none waits while there is room for all. Then the rest goes, one step at a time, where a step is
worth most for each replica. A job whose size changes loses a restart out of the time that the size
is likely to last, so that small gains move nobody.
What was preempted, has ended or is pending is no claim: its replicas are free at once.

``fair_shares`` is ``allocate`` over jobs as a cluster has them.
Jobs ask for pods of different sizes, on nodes that not every pod may go to. So for each job is
counted how many of its pods there would be room for if the jobs of the contest held none; the
largest of these counts is the capacity, and a pod of a job takes as many shares of it as the job's
own count says. Nodes are one capacity, each quota of a namespace is another one.

Nobody is asked to give way unless somebody lacks room: a pod of a job finds no node, or a job
would grow if there were room. A job never goes below its fewest, and gets no more than it wants.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api.cluster_capacity import (
    ClusterCapacity,
    NodeCapacity,
    PodRequirements,
    QuotaHeadroom,
)
from rover_kf.scaling import headroom
from rover_kf.scaling.decision_input import UNKNOWN_WORK_SECONDS
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation

HORIZON_SECONDS = 600.0
"""How long a size is likely to last in a cluster where jobs come and go."""
AGEING_SECONDS = 3600.0
"""A job that has waited so long without a replica counts twice, and so on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A job that may train."""

    name: str
    rates: Mapping[int, float]
    """Allowed replicas, ascending, not empty → samples a second, measured or predicted."""
    work: float
    """Samples left."""
    present: int = 0
    """Replicas that it has; 0: it waits."""
    weight: float = 1.0
    """By its priority: what is worth twice gets the next replica at half the gain."""
    restart_seconds: float = 60.0
    waited: float = 0.0
    """Seconds without a replica."""

    @property
    def min_replicas(self) -> int:
        """The least size that it can train with."""
        return next(iter(self.rates))

    def value(self, replicas: int) -> float:
        """Weighted share of the work that is done in a second at the size."""
        if not replicas:
            return 0.0
        rate = self.rates[replicas]
        if replicas != self.present:
            lasts = max(min(HORIZON_SECONDS, self.work / rate), self.restart_seconds)
            rate *= 1.0 - 0.9 * self.restart_seconds / lasts
        return self.weight * (1.0 + self.waited / AGEING_SECONDS) * rate / max(self.work, 1e-9)


def allocate(claims: Sequence[Claim], capacity: int) -> dict[str, int]:
    """Return an allowed size, or 0, for each job that may train; together at most the capacity."""
    sizes, free = _grant_minimum(claims, capacity)
    steps = [step for i, claim in enumerate(claims) if (step := _best_step(claim, i, sizes, free))]
    heapq.heapify(steps)
    while steps:
        _, i, size = heapq.heappop(steps)
        claim = claims[i]
        if size - sizes[claim.name] <= free:
            free -= size - sizes[claim.name]
            sizes[claim.name] = size
        if step := _best_step(claim, i, sizes, free):
            heapq.heappush(steps, step)
    return sizes


def _grant_minimum(claims: Sequence[Claim], capacity: int) -> tuple[dict[str, int], int]:
    """Each job's fewest replicas, while there is room: those first that gain most by them."""
    sizes, free = {claim.name: 0 for claim in claims}, capacity
    order = sorted(claims, key=lambda claim: -claim.value(claim.min_replicas) / claim.min_replicas)
    for claim in order:
        if claim.min_replicas <= free:
            sizes[claim.name] = claim.min_replicas
            free -= claim.min_replicas
    return sizes, free


def _best_step(
    claim: Claim, index: int, sizes: Mapping[str, int], free: int
) -> tuple[float, int, int] | None:
    """The step up that is worth most for each replica, of those that fit; None if none gains."""
    present = sizes[claim.name]
    here = claim.value(present)
    steps = (
        ((claim.value(size) - here) / (size - present), -size)
        for size in claim.rates
        if present < size <= present + free and (present or size == claim.min_replicas)
    )
    gain, size = max(steps, default=(0.0, 0))
    return (-gain, index, -size) if gain > 0 else None


MAX_PENDING_SECONDS = 600.0
"""A pod that has found no node for so long will find none by others giving way."""

_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class CompetingJob:
    """A job that has pods, or waits for room for them."""

    name: str
    namespace: str
    requirements: PodRequirements
    requested: int
    """Worker replicas that it asks for, or will once the change under way is made."""
    min_replicas: int
    nodes: tuple[str, ...] = ()
    """Nodes of its Workers, one for each that has one."""
    desired: int = 0
    """Worker replicas that it would have, were there room; 0: what it asks for."""
    bound: str = ""
    """What has no room for these (``PodHeadroom.bound``); empty: something that no job can give."""
    pending_seconds: float = 0.0
    """For how long a pod of it has found no node; 0: all have one."""
    rates: tuple[tuple[int, float], ...] = ()
    """Allowed replicas, ascending, with samples a second; empty: not known yet, or fixed."""
    work: float = 0.0
    """Samples left."""
    weight: float = 1.0
    restart_seconds: float = 60.0
    rates_until: float = 0.0
    """End of the newest window that the rates were learned from."""

    @property
    def max_useful(self) -> int:
        """Replicas that are of use to it now."""
        return max(self.desired, self.requested)

    @property
    def is_short(self) -> bool:
        """Whether it lacks room that others might give."""
        return self.lacks_room(headroom.NODES) or self.lacks_room(self.bound)

    def following(self, previous: CompetingJob | None) -> CompetingJob:
        """Return the job with what it wanted before, while it asks for as many replicas."""
        if previous is None or previous.requested != self.requested:
            return self
        return dataclasses.replace(self, desired=previous.desired, bound=previous.bound)

    def with_rates(
        self,
        observation: JobObservation,
        policy: AutoscalingPolicy,
        until: float,
        previous: CompetingJob | None,
    ) -> CompetingJob:
        """Return the job with what sizes bring it, predicted where a window was measured since."""
        found = dataclasses.replace(self, rates_until=until, work=work_left(observation))
        known = previous is not None and previous.rates_until == until
        if previous is not None and known and previous.requested == self.requested:
            return dataclasses.replace(found, rates=previous.rates)
        return dataclasses.replace(found, rates=predict_rates(observation, policy, self.requested))

    def lacks_room(self, pool: str) -> bool:
        """Whether it lacks room of that kind."""
        waits = pool == headroom.NODES and 0 < self.pending_seconds < MAX_PENDING_SECONDS
        return waits or (self.desired > self.requested and bool(pool) and pool == self.bound)


@dataclasses.dataclass(frozen=True, slots=True)
class FairShare:
    """What a job may have now."""

    max_replicas: float
    """Worker replicas; infinite while no other job lacks room."""
    reason: str = ""
    """For whom it is no more."""


UNLIMITED = FairShare(math.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class FairShareView:
    """What one job sees around it."""

    capacity: ClusterCapacity
    """What is left, without what others were promised."""
    requirements: PodRequirements
    """Of one more of its pods."""
    share: FairShare = UNLIMITED


def predict_rates(
    observation: JobObservation, policy: AutoscalingPolicy, requested: int
) -> tuple[tuple[int, float], ...]:
    """Return what each size within reach brings: replicas with samples a second, ascending.

    Nothing is known while no window was measured.
    """
    if observation.model is None:
        return ()
    each, masters, model = observation.processes_per_node, observation.masters, observation.model
    near = (size for size in policy.allowed() if size <= 2 * requested)
    return tuple((size, model.rate((size + masters) * each)) for size in near)


def work_left(observation: JobObservation) -> float:
    """Samples that the job has still to train on; an hour's where it does not say."""
    if not observation.windows:
        return 0.0
    newest = observation.windows[-1]
    if observation.total_steps is None:
        return UNKNOWN_WORK_SECONDS * newest.samples_per_second
    return max(0, observation.total_steps - observation.step) * newest.global_batch


def fair_shares(members: Sequence[CompetingJob], capacity: ClusterCapacity) -> dict[str, FairShare]:
    """Return how many replicas each job may have, so that those that lack room get theirs.

    The capacity is what is left beyond all of them; a quota's members are those of its namespace.
    """
    found = []
    if capacity.nodes is not None:
        found.append(_pool_shares(members, _node_counts(members, capacity.nodes), headroom.NODES))
    for quota in capacity.quotas:
        counts = _quota_counts(members, quota)
        found.append(_pool_shares(members, counts, headroom.quota_bound(quota.name)))
    shares = {one.name: [UNLIMITED, *(pool[one.name] for pool in found)] for one in members}
    return {name: min(some, key=lambda share: share.max_replicas) for name, some in shares.items()}


def subtract_promised(capacity: ClusterCapacity, others: Iterable[CompetingJob]) -> ClusterCapacity:
    """What is left once the pods that others ask for have found their nodes."""
    if capacity.nodes is None:
        return capacity
    nodes = list(capacity.nodes)
    for one in others:
        for _ in range(one.requested - len(one.nodes)):
            fits = (headroom.pods_fitting(one.requirements, node) for node in nodes)
            index = next((i for i, count in enumerate(fits) if count), None)
            if index is None:
                break
            nodes[index] = _subtract_pod(nodes[index], one.requirements)
    return dataclasses.replace(capacity, nodes=tuple(nodes))


def _pool_shares(
    members: Sequence[CompetingJob], counts: Mapping[str, float], pool: str
) -> dict[str, FairShare]:
    """Of one capacity, by how many pods of each job it would hold."""
    bound = [one for one in members if 1 <= counts[one.name] < math.inf]
    short = sorted(one.name for one in bound if one.lacks_room(pool))
    found = dict.fromkeys((one.name for one in members), UNLIMITED)
    if not short:
        return found
    capacity = max(counts[one.name] for one in bound)
    units = {one.name: math.ceil(capacity / counts[one.name]) for one in bound}
    given = allocate([_claim(one, units[one.name]) for one in bound], int(capacity))
    for one in bound:
        most = max(given[one.name] // units[one.name], one.min_replicas)
        others = [name for name in short if name != one.name]
        if others:
            why = f"{', '.join(others[:_MOST_NAMED])} lacks room and gains more by it"
            found[one.name] = FairShare(most, why)
    return found


def _claim(job: CompetingJob, units: int) -> Claim:
    """Sizes in shares of the capacity; a job that is not known yet is worth an hour's work."""
    known = {size: rate for size, rate in job.rates if job.min_replicas <= size <= job.max_useful}
    rates = known or {size: float(size) for size in range(job.min_replicas, job.requested + 1)}
    work = job.work if known else UNKNOWN_WORK_SECONDS * job.requested
    present = job.requested if job.requested in rates and job.nodes else 0
    return Claim(
        job.name,
        {size * units: rate for size, rate in rates.items()},
        work,
        present=present * units,
        weight=job.weight,
        restart_seconds=job.restart_seconds,
        waited=job.pending_seconds,
    )


def _node_counts(
    members: Sequence[CompetingJob], nodes: Sequence[NodeCapacity]
) -> dict[str, float]:
    """How many of each job's pods nodes would hold if none of these jobs had any there."""
    held: dict[str, dict[str, float]] = {}
    for member in members:
        for place in member.nodes:
            sums = held.setdefault(place, {})
            for key, value in {**member.requirements.requests, "pods": 1.0}.items():
                sums[key] = sums.get(key, 0.0) + value
    here = {node.name for node in nodes}
    alike: dict[str, float] = {}
    found = {}
    for one in members:
        kind = repr(one.requirements)
        if kind not in alike:
            alike[kind] = sum(
                headroom.pods_fitting(one.requirements, node, held.get(node.name)) for node in nodes
            )
        # What stands on a node that takes no more pods stays there.
        found[one.name] = alike[kind] + sum(place not in here for place in one.nodes)
    return found


def _quota_counts(members: Sequence[CompetingJob], quota: QuotaHeadroom) -> dict[str, float]:
    left = dict(quota.remaining)
    for member in members:
        for key in left:
            left[key] += headroom.quota_usage(member.requirements, key) * len(member.nodes)
    whole = QuotaHeadroom(quota.name, left)
    return {one.name: headroom.quota_headroom(one.requirements, whole).count for one in members}


def _subtract_pod(node: NodeCapacity, requirements: PodRequirements) -> NodeCapacity:
    asked = {**requirements.requests, "pods": 1.0}
    free = {key: value - asked.get(key, 0.0) for key, value in node.free.items()}
    return dataclasses.replace(node, free=free)
