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

from rover_kf.api.cluster_capacity import ClusterCapacity, NodeCapacity, PodRequirements
from rover_kf.api.samples import Throughput
from rover_kf.metrics.windows import keep_recent
from rover_kf.scaling.decide import decide
from rover_kf.scaling.decision_input import STAY
from rover_kf.scaling.fair_sharing import (
    UNLIMITED,
    CompetingJob,
    FairShare,
    FairShareView,
    fair_shares,
    subtract_promised,
)
from rover_kf.scaling.policy import AUTO, AutoscalingPolicy
from rover_kf.scaling.scale_admission import AdmissionInput, admit
from rover_kf.scaling.scaling_state import JobObservation, ScalingState
from rover_kf.simulation.cluster_simulation import ClusterShape, FleetJob

NOISE = 0.03
"""Standard deviation of a window's step time, relative."""
VALUE_OF_TIME = 8.0
"""Owners who compare completion times mind time; docs/scaling.md says what the numbers mean."""
_NODES, _POD = "nodes", PodRequirements({})


@dataclasses.dataclass(slots=True)
class ControlledJob:
    """A job as the controller and the scheduler have it."""

    job: FleetJob
    policy: AutoscalingPolicy
    requested: int
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
    member: CompetingJob | None = None

    def observe(self, now: float) -> JobObservation:
        """As its coordinator and its pods tell it."""
        trains = self.placed == self.job.replicas and not self.job.restart_left
        lacking = self.requested - self.placed if trains and self.placed else 0
        return JobObservation(
            replicas=self.requested,
            masters=0,
            steady=trains and self.placed == self.requested,
            windows=self.windows,
            step=max(0, int(self.steps - self.job.steps_left)),
            total_steps=max(1, int(self.steps)),
            restart_seconds=self.restart_seconds,
            unschedulable=lacking,
            unschedulable_seconds=now - self.since,
        )


class ControllerPolicy:
    """The controller, with the value of time that owners would set on their jobs."""

    packs = True

    def __init__(self, shape: ClusterShape, value_of_time: float = VALUE_OF_TIME) -> None:
        self._shape, self._value_of_time = shape, value_of_time
        self._noise = np.random.default_rng(shape.seed)
        self._jobs: dict[str, ControlledJob] = {}
        self._shared_view: tuple[Mapping[str, FairShare], ClusterCapacity] | None = None

    def windows(self, name: str) -> tuple[Throughput, ...]:
        """Of a job that was there at the last look."""
        return self._jobs[name].windows

    def allocate(self, jobs: Sequence[FleetJob], now: float) -> Mapping[str, int]:
        """Pods find places, windows close, each job is looked at, pods find places again."""
        known = {job.name: self._jobs.get(job.name) or self._register(job) for job in jobs}
        self._jobs, self._shared_view = known, None
        for one in known.values():
            self._measure(one, now)
        self._schedule(now)
        for one in known.values():
            one.member = self._competing_job(one, one.observe(now), now)
        for one in known.values():
            self._decide(one, now)
        self._schedule(now)
        return {name: one.placed for name, one in known.items()}

    def _register(self, job: FleetJob) -> ControlledJob:
        """Its owner asks for what arrivals say, and lets it have any size that it can have."""
        sizes = job.allowed_sizes(self._shape.capacity)
        policy = AutoscalingPolicy(
            mode=AUTO,
            min=sizes[0],
            max=sizes[-1],
            sizes=tuple(sizes),
            window_seconds=self._shape.interval_seconds,
            value_of_time=self._value_of_time,
        )
        asked = max(size for size in sizes if size <= max(job.arrival.replicas, sizes[0]))
        return ControlledJob(job, policy, asked, job.arrival.arrived_at, job.steps_left)

    def _measure(self, controlled: ControlledJob, now: float) -> None:
        """Take the window that ends now, if the job trained all through it."""
        job, seconds = controlled.job, self._shape.interval_seconds
        if job.restart_left:  # a node failed
            controlled.trains_from = now + job.restart_left
        if not job.hosts or controlled.trains_from > now - seconds:
            return
        step = job.step_seconds(job.placement)
        step *= max(0.5, 1 + NOISE * self._noise.standard_normal())
        count, batch = job.replicas, float(job.arrival.global_batch)
        steps = max(1, int(seconds / step))
        window = Throughput(
            now - seconds, now, count, count, steps, int(steps * batch), step, batch
        )
        controlled.windows = tuple(keep_recent([*controlled.windows, window]))

    def _schedule(self, now: float) -> None:
        """Pods without a node get what is free, those first whose job came first."""
        free = self._shape.capacity - sum(one.placed for one in self._jobs.values())
        for one in self._jobs.values():
            more = min(free, one.requested - one.placed)
            if more > 0:
                self._set_placed(one, one.placed + more, now)
                free -= more

    def _set_placed(self, controlled: ControlledJob, replicas: int, now: float) -> None:
        controlled.placed = replicas
        controlled.trains_from = now + self._shape.restart_seconds
        if controlled.job.hosts:
            controlled.restart_seconds = self._shape.restart_seconds
        if controlled.placed == controlled.requested:
            controlled.since = now
        self._shared_view = None

    def _competing_job(
        self, controlled: ControlledJob, observation: JobObservation, now: float
    ) -> CompetingJob:
        """The job as the others count it; learned anew only where a window was measured since."""
        known = controlled.member
        lacking = now - controlled.since if controlled.placed < controlled.requested else 0.0
        found = CompetingJob(
            name=controlled.job.name,
            namespace="",
            requirements=_POD,
            requested=controlled.requested,
            min_replicas=controlled.policy.min,
            nodes=(_NODES,) * controlled.placed,
            pending_seconds=lacking,
            restart_seconds=controlled.restart_seconds or controlled.policy.restart_prior_seconds,
        ).following(known)
        if not controlled.windows:
            return found
        until = controlled.windows[-1].ended_at
        return found.with_rates(observation, controlled.policy, until, known)

    def _decide(self, controlled: ControlledJob, now: float) -> None:
        here = controlled.observe(now)
        decision, state = decide(here, controlled.policy, controlled.state, now=now)
        others = any(
            other.member.is_short
            for other in self._jobs.values()
            if other is not controlled and other.member is not None
        )
        view = self._view(controlled) if others or decision.action != STAY else None
        look = AdmissionInput(here, controlled.policy, controlled.state, view)
        verdict = admit(look, decision, state, now=now)
        controlled.state = verdict.state
        if verdict.decision.action != STAY:
            controlled.state = verdict.state.with_change(now)
            self._resize(controlled, verdict.decision.target, now)
        if verdict.desired is not None and controlled.member is not None:
            wants, bound = controlled.member.desired, controlled.member.bound
            if (wants, bound) != (verdict.desired, verdict.bound):
                controlled.member = dataclasses.replace(
                    controlled.member, desired=verdict.desired, bound=verdict.bound
                )
                self._shared_view = None

    def _resize(self, controlled: ControlledJob, replicas: int, now: float) -> None:
        """Replicas that are given up are free at once; those that are asked for wait for room."""
        controlled.requested, controlled.since = replicas, now
        if controlled.placed > replicas:
            self._set_placed(controlled, replicas, now)
        controlled.member = self._competing_job(controlled, controlled.observe(now), now)
        self._shared_view = None

    def _view(self, controlled: ControlledJob) -> FairShareView:
        """What is left beside what all were promised, and the job's share of it."""
        if self._shared_view is None:
            members = [other.member for other in self._jobs.values() if other.member is not None]
            free = self._shape.capacity - sum(other.placed for other in self._jobs.values())
            around = ClusterCapacity((NodeCapacity(_NODES, {"pods": float(free)}),))
            self._shared_view = fair_shares(members, around), subtract_promised(around, members)
        found, left = self._shared_view
        return FairShareView(left, _POD, found.get(controlled.job.name, UNLIMITED))
