# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one job may have while others lack room: ``allocate`` over jobs as a cluster has them; pure.

Jobs ask for pods of different sizes, on nodes that not every pod may go to. So for each job is
counted how many of its pods there would be room for if the jobs of the contest held none; the
largest of these counts is the capacity, and a pod of a job takes as many shares of it as the job's
own count says. Nodes are one capacity, each quota of a namespace is another one.

Nobody is asked to give way unless somebody lacks room: a pod of a job finds no node, or a job
would grow if there were room. A job never goes below its fewest, and gets no more than it wants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api.cluster_capacity import NodeRoom, PodNeed, QuotaRoom, Surroundings
from rover_kf.scaling import headroom
from rover_kf.scaling.allocation import Claim, allocate
from rover_kf.scaling.decision_input import UNKNOWN_WORK_SECONDS
from rover_kf.scaling.policy import WatchPolicy
from rover_kf.scaling.scaling_state import Observation

GIVES_UP_SECONDS = 600.0
"""A pod that has found no node for so long will find none by others giving way."""

_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A job that has pods, or waits for room for them."""

    name: str
    namespace: str
    need: PodNeed
    asked: int
    """Worker replicas that it asks for, or will once the change under way is made."""
    fewest: int
    places: tuple[str, ...] = ()
    """Nodes of its Workers, one for each that has one."""
    wants: int = 0
    """Worker replicas that it would have, were there room; 0: what it asks for."""
    bound: str = ""
    """What has no room for these (``MorePods.bound``); empty: something that no job can give."""
    lacking_seconds: float = 0.0
    """For how long a pod of it has found no node; 0: all have one."""
    rates: tuple[tuple[int, float], ...] = ()
    """Allowed replicas, ascending, with samples a second; empty: not known yet, or fixed."""
    work: float = 0.0
    """Samples left."""
    weight: float = 1.0
    restart_seconds: float = 60.0
    known_until: float = 0.0
    """End of the newest window that the rates were learned from."""

    @property
    def most(self) -> int:
        """Replicas that are of use to it now."""
        return max(self.wants, self.asked)

    @property
    def short(self) -> bool:
        """Whether it lacks room that others might give."""
        return self.lacks(headroom.NODES) or self.lacks(self.bound)

    def lacks(self, pool: str) -> bool:
        """Whether it lacks room of that kind."""
        waits = pool == headroom.NODES and 0 < self.lacking_seconds < GIVES_UP_SECONDS
        return waits or (self.wants > self.asked and bool(pool) and pool == self.bound)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a job may have now."""

    most: float
    """Worker replicas; infinite while no other job lacks room."""
    why: str = ""
    """For whom it is no more."""


ALL = Share(math.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What one job sees around it."""

    around: Surroundings
    """What is left, without what others were promised."""
    need: PodNeed
    """Of one more of its pods."""
    share: Share = ALL


def gains(here: Observation, policy: WatchPolicy, asked: int) -> tuple[tuple[int, float], ...]:
    """What each size that is within reach brings: replicas with samples a second, ascending.

    Args:
        here: the job now.
        policy: with its allowed sizes.
        asked: replicas that it asks for, or will once the change under way is made.

    Returns:
        Nothing while no window was measured.
    """
    if here.model is None:
        return ()
    each, masters, model = here.processes_per_node, here.masters, here.model
    near = (size for size in policy.allowed() if size <= 2 * asked)
    return tuple((size, model.rate((size + masters) * each)) for size in near)


def work_left(here: Observation) -> float:
    """Samples that the job has still to train on; an hour's where it does not say."""
    if not here.windows:
        return 0.0
    newest = here.windows[-1]
    if here.total_steps is None:
        return UNKNOWN_WORK_SECONDS * newest.samples_per_second
    return max(0, here.total_steps - here.step) * newest.global_batch


def shares(members: Sequence[Member], around: Surroundings) -> dict[str, Share]:
    """How many replicas each job may have, so that those that lack room get theirs.

    Args:
        members: that compete; for a quota, those of its namespace alone.
        around: what is left beside all of them.
    """
    found = []
    if around.nodes is not None:
        found.append(_shares(members, _node_counts(members, around.nodes), headroom.NODES))
    for quota in around.quotas:
        counts = _quota_counts(members, quota)
        found.append(_shares(members, counts, headroom.of_quota(quota.name)))
    return {
        one.name: min((pool[one.name] for pool in found), key=lambda share: share.most, default=ALL)
        for one in members
    }


def promised(around: Surroundings, others: Iterable[Member]) -> Surroundings:
    """What is left once the pods that others ask for have found their nodes."""
    if around.nodes is None:
        return around
    nodes = list(around.nodes)
    for one in others:
        for _ in range(one.asked - len(one.places)):
            index = next(
                (i for i, node in enumerate(nodes) if headroom.places(one.need, node)), None
            )
            if index is None:
                break
            nodes[index] = _without(nodes[index], one.need)
    return dataclasses.replace(around, nodes=tuple(nodes))


def _shares(members: Sequence[Member], counts: Mapping[str, float], pool: str) -> dict[str, Share]:
    """Of one capacity, by how many pods of each job it would hold."""
    bound = [one for one in members if 1 <= counts[one.name] < math.inf]
    short = sorted(one.name for one in bound if one.lacks(pool))
    found = dict.fromkeys((one.name for one in members), ALL)
    if not short:
        return found
    capacity = max(counts[one.name] for one in bound)
    units = {one.name: math.ceil(capacity / counts[one.name]) for one in bound}
    given = allocate([_claim(one, units[one.name]) for one in bound], int(capacity))
    for one in bound:
        most = max(given[one.name] // units[one.name], one.fewest)
        others = [name for name in short if name != one.name]
        if others:
            why = f"{', '.join(others[:_MOST_NAMED])} lacks room and gains more by it"
            found[one.name] = Share(most, why)
    return found


def _claim(one: Member, units: int) -> Claim:
    """Sizes in shares of the capacity; a job that is not known yet is worth an hour's work."""
    known = {size: rate for size, rate in one.rates if one.fewest <= size <= one.most}
    rates = known or {size: float(size) for size in range(one.fewest, one.asked + 1)}
    work = one.work if known else UNKNOWN_WORK_SECONDS * one.asked
    present = one.asked if one.asked in rates and one.places else 0
    return Claim(
        one.name,
        {size * units: rate for size, rate in rates.items()},
        work,
        present=present * units,
        weight=one.weight,
        restart_seconds=one.restart_seconds,
        waited=one.lacking_seconds,
    )


def _node_counts(members: Sequence[Member], nodes: Sequence[NodeRoom]) -> dict[str, float]:
    """How many of each job's pods nodes would hold if none of these jobs had any there."""
    held: dict[str, dict[str, float]] = {}
    for member in members:
        for place in member.places:
            sums = held.setdefault(place, {})
            for key, value in {**member.need.requests, "pods": 1.0}.items():
                sums[key] = sums.get(key, 0.0) + value
    here = {node.name for node in nodes}
    alike: dict[str, float] = {}
    found = {}
    for one in members:
        kind = repr(one.need)
        if kind not in alike:
            alike[kind] = sum(
                headroom.places(one.need, node, held.get(node.name)) for node in nodes
            )
        # What stands on a node that takes no more pods stays there.
        found[one.name] = alike[kind] + sum(place not in here for place in one.places)
    return found


def _quota_counts(members: Sequence[Member], quota: QuotaRoom) -> dict[str, float]:
    left = dict(quota.left)
    for member in members:
        for key in left:
            left[key] += headroom.counted(member.need, key) * len(member.places)
    whole = QuotaRoom(quota.name, left)
    return {one.name: headroom.quota_room(one.need, whole).count for one in members}


def _without(node: NodeRoom, need: PodNeed) -> NodeRoom:
    asked = {**need.requests, "pods": 1.0}
    free = {key: value - asked.get(key, 0.0) for key, value in node.free.items()}
    return dataclasses.replace(node, free=free)
