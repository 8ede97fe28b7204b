# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one decision reckons with: the job, its owner's policy, the memory and the prices."""

from __future__ import annotations

import dataclasses
import statistics

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.samples import Throughput
from rover_kf.scaling import throughput
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, ScalingState

STAY, SCALE, ROLL_BACK = "stay", "scale", "roll_back"

LAST_SHARE = 0.1
"""No change in the last tenth of the work: it would hardly be paid back."""

UNKNOWN_WORK_SECONDS = 3600.0
"""Time left that is assumed when the trainer does not say how many steps there will be."""

STARVED = 0.1
"""Of a step, spent waiting for data: more is told where more replicas are reckoned with."""

LATE_PRICE = 1000.0
"""Replica-seconds that a second after the deadline costs: whatever helps to meet it pays."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionInput:
    """Everything that one decision reckons with."""

    observation: JobObservation
    policy: AutoscalingPolicy
    state: ScalingState
    now: float
    windows: tuple[Throughput, ...]
    """At the present size, since the last change."""

    @classmethod
    def from_observation(
        cls, observation: JobObservation, policy: AutoscalingPolicy, state: ScalingState, now: float
    ) -> DecisionInput:
        """The case with the windows that speak of the present size."""
        return cls(observation, policy, state, now, current_windows(observation, state))

    @property
    def rate(self) -> float:
        """Samples per second now; 0 if not measured."""
        return throughput.median_throughput(self.windows) if self.windows else 0.0

    @property
    def restart_seconds(self) -> float:
        """Seconds that a change costs."""
        return self.observation.restart_seconds or self.policy.restart_prior_seconds

    @property
    def seconds_left(self) -> float:
        """At the present throughput."""
        if self.observation.total_steps is None or not self.windows:
            return UNKNOWN_WORK_SECONDS
        steps = max(0, self.observation.total_steps - self.observation.step)
        return steps * self.windows[-1].step_seconds

    @property
    def data_wait_note(self) -> str:
        """What to try before more replicas where ranks wait for data; empty where they do not.

        It stops nothing: replicas bring loaders of their own, and what they gain is measured.
        """
        waits = [window.wait_fraction for window in self.windows]
        found = statistics.median(waits) if waits else 0.0
        if found <= STARVED:
            return ""
        return f"; {found:.0%} of a step waits for data: loader workers and CPU may gain as much"

    def cost(self, replicas: int, rate: float) -> float:
        """J: replica-seconds for the work left, with the price of waiting and lateness."""
        nodes = replicas + self.observation.masters
        seconds = self.seconds_left * self.rate / rate
        late = 0.0
        if self.policy.deadline is not None:
            late = max(0.0, self.now + seconds - self.policy.deadline)
        return seconds * (nodes + self.policy.value_of_time) + late * LATE_PRICE

    def change_cost(self, replicas: int) -> float:
        """Replica-seconds that going to the size takes."""
        return self.restart_seconds * (
            replicas + self.observation.masters + self.policy.value_of_time
        )

    def stay(self, reason: str) -> ScaleDecision:
        """A decision to stay."""
        return self.decision(STAY, self.observation.replicas, reason, self.rate)

    def decision(self, action: str, target: int, reason: str, predicted: float) -> ScaleDecision:
        """A decision with this case's measurements."""
        return ScaleDecision(
            at=self.now,
            action=action,
            current=self.observation.replicas,
            target=target,
            reason=reason,
            measured=self.rate,
            predicted=predicted,
            restart_seconds=self.restart_seconds,
            windows=len(self.windows),
            seconds_left=round(self.seconds_left, 1),
            allowed=self.policy.allowed_text(),
            banned=",".join(map(str, sorted(self.state.banned(self.now)))),
        )

    @property
    def nearly_done(self) -> bool:
        """Whether only the last share of the work is left."""
        total = self.observation.total_steps
        return total is not None and total - self.observation.step <= LAST_SHARE * total

    def world_size(self, replicas: int) -> int:
        """Ranks that the job has with so many Worker replicas."""
        return (replicas + self.observation.masters) * self.observation.processes_per_node


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingProposal:
    """A job as scaling sees it, and where it would go, whatever there is room for."""

    current: JobObservation
    """With the model of its throughput, which is fitted when somebody asks for it."""
    decision: ScaleDecision | None = None
    """None while a change that is written down has still to be made."""
    state: ScalingState = dataclasses.field(default_factory=ScalingState)
    """To be kept with the decision."""


def current_windows(observation: JobObservation, state: ScalingState) -> tuple[Throughput, ...]:
    """The unbroken run of newest windows at the present size, since the last change."""
    run: list[Throughput] = []
    for window in reversed(observation.windows):
        if window.nodes != observation.nodes or window.started_at < state.changed_at:
            break
        if window.step_seconds > 0:
            run.append(window)
    return tuple(reversed(run))
