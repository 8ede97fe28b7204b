# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose jobs are scaled by the controller's own decision, each from its own windows.

Once an interval each job is looked at as ``rover_kf.reconcilers`` does it: ``decide`` for itself,
``shares`` where others lack room, ``verdict.judge`` over both. What the reconcilers add is how a
change is written down, announced and made; here it is made at once, and costs a restart. A pod is a
replica, and any node takes any of them; the scheduler gives free room in the order of arrival.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from rover_kf.api.cluster_capacity import NodeRoom, PodNeed, Surroundings
from rover_kf.api.samples import Throughput
from rover_kf.metrics.windows import without_excess
from rover_kf.scaling.decide import decide
from rover_kf.scaling.decision_input import STAY
from rover_kf.scaling.fair_sharing import ALL, Member, Share, View, gains, promised, shares
from rover_kf.scaling.fair_sharing import work_left as samples_left
from rover_kf.scaling.policy import AUTO, WatchPolicy
from rover_kf.scaling.scale_admission import Look, judge
from rover_kf.scaling.scaling_state import Observation, ScalingState
from rover_kf.simulation.cluster_simulation import FleetJob, Shape
from rover_kf.simulation.per_job_policies import sizes_of

NOISE = 0.03
"""Standard deviation of a window's step time, relative."""
VALUE_OF_TIME = 8.0
"""Owners who compare completion times mind time; docs/scaling.md says what the numbers mean."""
_NODES, _POD = "nodes", PodNeed({})


@dataclasses.dataclass(slots=True)
class Controlled:
    """A job as the controller and the scheduler have it."""

    job: FleetJob
    policy: WatchPolicy
    asked: int
    since: float
    """When it came, or asked for what it asks for."""
    steps: float
    """Of its whole work."""
    placed: int = 0
    """Of its replicas, those that have a node."""
    state: ScalingState = dataclasses.field(default_factory=ScalingState)
    windows: tuple[Throughput, ...] = ()
    trains_from: float = 0.0
    """End of its last restart."""
    restart_seconds: float = 0.0
    member: Member | None = None

    def observed(self, now: float) -> Observation:
        """As its coordinator and its pods tell it."""
        trains = self.placed == self.job.replicas and not self.job.hold
        lacking = self.asked - self.placed if trains and self.placed else 0
        return Observation(
            replicas=self.asked,
            masters=0,
            steady=trains and self.placed == self.asked,
            windows=self.windows,
            step=max(0, int(self.steps - self.job.steps_left)),
            total_steps=max(1, int(self.steps)),
            restart_seconds=self.restart_seconds,
            unplaced=lacking,
            unplaced_seconds=now - self.since,
        )


class Rover:
    """The controller.

    Args:
        shape: of the cluster.
        value_of_time: as owners would set it on their jobs.
    """

    packs = True

    def __init__(self, shape: Shape, value_of_time: float = VALUE_OF_TIME) -> None:
        self._shape, self._value_of_time = shape, value_of_time
        self._noise = np.random.default_rng(shape.seed)
        self._jobs: dict[str, Controlled] = {}
        self._reading: tuple[Mapping[str, Share], Surroundings] | None = None

    def windows(self, name: str) -> tuple[Throughput, ...]:
        """Of a job that was there at the last look."""
        return self._jobs[name].windows

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """Pods find places, windows close, each job is looked at, pods find places again."""
        known = {job.name: self._jobs.get(job.name) or self._came(job) for job in jobs}
        self._jobs, self._reading = known, None
        for one in known.values():
            self._measure(one, now)
        self._schedule(now)
        for one in known.values():
            one.member = self._member(one, one.observed(now), now)
        for one in known.values():
            self._look(one, now)
        self._schedule(now)
        return {name: one.placed for name, one in known.items()}

    def _came(self, job: FleetJob) -> Controlled:
        """Its owner asks for what arrivals say, and lets it have any size that it can have."""
        sizes = sizes_of(job, self._shape.capacity)
        policy = WatchPolicy(
            mode=AUTO,
            min=sizes[0],
            max=sizes[-1],
            sizes=tuple(sizes),
            window_seconds=self._shape.interval_seconds,
            value_of_time=self._value_of_time,
        )
        asked = max(size for size in sizes if size <= max(job.arrival.replicas, sizes[0]))
        return Controlled(job, policy, asked, job.arrival.at, job.steps_left)

    def _measure(self, one: Controlled, now: float) -> None:
        """Take the window that ends now, if the job trained all through it."""
        job, seconds = one.job, self._shape.interval_seconds
        if job.hold:  # a node failed
            one.trains_from = now + job.hold
        if not job.hosts or one.trains_from > now - seconds:
            return
        step = job.step_seconds(job.placement)
        step *= max(0.5, 1 + NOISE * self._noise.standard_normal())
        count, batch = job.replicas, float(job.arrival.global_batch)
        steps = max(1, int(seconds / step))
        window = Throughput(
            now - seconds, now, count, count, steps, int(steps * batch), step, batch
        )
        one.windows = tuple(without_excess([*one.windows, window]))

    def _schedule(self, now: float) -> None:
        """Pods without a node get what is free, those first whose job came first."""
        free = self._shape.capacity - sum(one.placed for one in self._jobs.values())
        for one in self._jobs.values():
            more = min(free, one.asked - one.placed)
            if more > 0:
                self._place(one, one.placed + more, now)
                free -= more

    def _place(self, one: Controlled, replicas: int, now: float) -> None:
        one.placed = replicas
        one.trains_from = now + self._shape.restart_seconds
        if one.job.hosts:
            one.restart_seconds = self._shape.restart_seconds
        if one.placed == one.asked:
            one.since = now
        self._reading = None

    def _member(self, one: Controlled, here: Observation, now: float) -> Member:
        """The job as the others count it; learned anew only where a window was measured since."""
        known = one.member
        lacking = now - one.since if one.placed < one.asked else 0.0
        found = Member(
            name=one.job.name,
            namespace="",
            need=_POD,
            asked=one.asked,
            fewest=one.policy.min,
            places=(_NODES,) * one.placed,
            lacking_seconds=lacking,
            restart_seconds=one.restart_seconds or one.policy.restart_prior_seconds,
        )
        if known is not None and known.asked == one.asked:
            found = dataclasses.replace(found, wants=known.wants, bound=known.bound)
        if not one.windows:
            return found
        until = one.windows[-1].ended_at
        found = dataclasses.replace(found, work=samples_left(here), known_until=until)
        if known is not None and (known.known_until, known.asked) == (until, one.asked):
            return dataclasses.replace(found, rates=known.rates)
        return dataclasses.replace(found, rates=gains(here, one.policy, one.asked))

    def _look(self, one: Controlled, now: float) -> None:
        here = one.observed(now)
        decision, state = decide(here, one.policy, one.state, now=now)
        others = any(
            other.member.short
            for other in self._jobs.values()
            if other is not one and other.member is not None
        )
        view = self._view(one) if others or decision.action != STAY else None
        look = Look(here, one.policy, one.state, view)
        verdict = judge(look, decision, state, now=now)
        one.state = verdict.state
        if verdict.decision.action != STAY:
            one.state = verdict.state.with_change(now)
            self._resize(one, verdict.decision.target, now)
        if verdict.wants is not None and one.member is not None:
            wants, bound = one.member.wants, one.member.bound
            if (wants, bound) != (verdict.wants, verdict.bound):
                one.member = dataclasses.replace(
                    one.member, wants=verdict.wants, bound=verdict.bound
                )
                self._reading = None

    def _resize(self, one: Controlled, replicas: int, now: float) -> None:
        """Replicas that are given up are free at once; those that are asked for wait for room."""
        one.asked, one.since = replicas, now
        if one.placed > replicas:
            self._place(one, replicas, now)
        one.member = self._member(one, one.observed(now), now)
        self._reading = None

    def _view(self, one: Controlled) -> View:
        """What is left beside what all were promised, and the job's share of it."""
        if self._reading is None:
            members = [other.member for other in self._jobs.values() if other.member is not None]
            free = self._shape.capacity - sum(other.placed for other in self._jobs.values())
            around = Surroundings((NodeRoom(_NODES, {"pods": float(free)}),))
            self._reading = shares(members, around), promised(around, members)
        found, left = self._reading
        return View(left, _POD, found.get(one.job.name, ALL))
