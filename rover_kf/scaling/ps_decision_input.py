# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a decision about a job with parameter servers reckons with: its setup, law, prices; pure."""

from __future__ import annotations

import dataclasses
import statistics

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling.decision_input import (
    LAST_SHARE,
    LATE_PRICE,
    STAY,
    UNKNOWN_WORK_SECONDS,
)
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.ps_model import WINDOWS_PER_SETUP, PsModel
from rover_kf.scaling.scaling_state import ScalingState, Settled

LIVE_SECONDS = 5.0
"""That a worker's coming or going is reckoned with: the others do not wait for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PsObservation:
    """A job with parameter servers in one moment."""

    setup: ServerSetup
    """As the job states it."""
    masters: int
    """The chief, which counts as one that costs."""
    steady: bool
    """Whether the chief trains and all workers and servers are at work."""
    windows: tuple[Throughput, ...] = ()
    """Of the chief, who counts the steps of all workers; oldest first, by our clock."""
    model: PsModel | None = None
    """None: one setup alone was ever seen."""
    steps_left: float | None = None
    seconds_left: float | None = None
    """As the ledger foretells, where the steps are not known."""
    share_left: float | None = None
    """Of all work; None: not known."""
    restart_seconds: float = 0.0
    """That processes took to begin anew in their pods; 0: they never did."""
    live: bool = False
    """Whether workers come and go while it runs."""
    suspend_blocker: str = ""
    """Why it cannot be suspended and resumed for a change; empty: it can."""
    raised_at: float = 0.0
    """Since when the present CPU limits hold; 0: from the begin on."""
    cores_seconds: float | None = None
    """Since a raise of CPU limits whose effect is not measured yet; None: there is none."""

    @property
    def counts(self) -> tuple[int, int]:
        """Workers and parameter servers."""
        return self.setup.workers, self.setup.servers


@dataclasses.dataclass(frozen=True, slots=True)
class PsDecisionInput:
    """Everything that one decision reckons with."""

    observation: PsObservation
    policy: AutoscalingPolicy
    state: ScalingState
    now: float
    windows: tuple[Throughput, ...]
    """Whole ones of the present setup."""

    @classmethod
    def from_observation(
        cls, observation: PsObservation, policy: AutoscalingPolicy, state: ScalingState, now: float
    ) -> PsDecisionInput:
        """The case, with who is at work noted in its state."""
        state = _with_settled(observation, state, now)
        return cls(observation, policy, state, now, _current_windows(observation, state))

    @property
    def rate(self) -> float:
        """Steps a second of the whole job now; 0 if not measured."""
        found = [_rate(window) for window in self.windows[-WINDOWS_PER_SETUP:]]
        return statistics.median(found) if found else 0.0

    @property
    def seconds_left(self) -> float:
        """At the present pace."""
        if self.observation.steps_left is not None and self.rate:
            return self.observation.steps_left / self.rate
        told = self.observation.seconds_left
        return UNKNOWN_WORK_SECONDS if told is None else told

    @property
    def nearly_done(self) -> bool:
        """Whether only the last share of the work is left."""
        return self.observation.share_left is not None and self.observation.share_left <= LAST_SHARE

    def change_seconds(self, *, cycles: bool) -> float:
        """That a change takes.

        Args:
            cycles: whether all pods end for it.
        """
        if not cycles:
            return LIVE_SECONDS
        guess = max(self.observation.restart_seconds, self.policy.restart_prior_seconds)
        return self.state.cycle_seconds or guess

    def cost_per_second(self, setup: ServerSetup) -> float:
        """What a second of it costs, in workers, with the price of waiting.

        A server counts by its cores.
        """
        servers = setup.servers * setup.server_cores / self.observation.setup.worker_cores
        return setup.workers + servers + self.observation.masters + self.policy.value_of_time

    def cost(self, setup: ServerSetup, rate: float) -> float:
        """Of the work left, in worker-seconds."""
        seconds = self.seconds_left * self.rate / rate
        late = 0.0
        if self.policy.deadline is not None:
            late = max(0.0, self.now + seconds - self.policy.deadline)
        return seconds * self.cost_per_second(setup) + late * LATE_PRICE

    def change_cost(self, setup: ServerSetup, *, cycles: bool) -> float:
        """Of going to a setup."""
        return self.change_seconds(cycles=cycles) * self.cost_per_second(setup)

    def predict_rate(self, setup: ServerSetup) -> float:
        """Steps a second of another setup: what the law says it brings, from the present rate on.

        Where there is no law, as if all workers were as fast as those that are here.
        """
        law, here = self.observation.model, self.observation.setup
        if law is None:
            return self.rate * setup.workers / here.workers
        return self.rate * law.steps_per_second(setup) / law.steps_per_second(here)

    def stay(self, reason: str) -> ScaleDecision:
        """A decision to stay."""
        return self.decision(STAY, self.observation.setup, reason, self.rate, cycles=False)

    def decision(
        self, action: str, target: ServerSetup, reason: str, predicted: float, *, cycles: bool
    ) -> ScaleDecision:
        """A decision with this case's measurements."""
        workers, servers = self.observation.counts
        return ScaleDecision(
            at=self.now,
            action=action,
            current=workers,
            target=target.workers,
            reason=reason,
            measured=self.rate,
            predicted=predicted,
            restart_seconds=self.change_seconds(cycles=cycles),
            windows=len(self.windows),
            seconds_left=round(self.seconds_left, 1),
            allowed=allowed_text(self.policy, servers),
            banned=", ".join(
                f"{many} with {few} PS" for many, few in sorted(self.state.banned_setups(self.now))
            ),
            servers=servers,
            target_servers=target.servers,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class PsProposal:
    """A job as scaling sees it, and where it would go, whatever there is room for."""

    current: PsObservation
    decision: ScaleDecision
    state: ScalingState
    """To be kept with the decision."""


def allowed_text(policy: AutoscalingPolicy, servers: int) -> str:
    """Which sizes the policy allows, for a person.

    Args:
        policy: of the job.
        servers: that it has.
    """
    workers = policy.allowed_text()
    return f"{workers}, PS {servers}-{policy.max_servers}" if policy.max_servers else workers


def may_change(policy: AutoscalingPolicy, setup: ServerSetup) -> bool:
    """Whether any other size is allowed at all."""
    others = any(workers != setup.workers for workers in policy.allowed())
    return others or policy.max_servers > setup.servers


def _with_settled(observation: PsObservation, state: ScalingState, now: float) -> ScalingState:
    """The state with since when all that the job asks for are at work."""
    known = state.settled
    if not observation.steady or (known and (known.workers, known.servers) == observation.counts):
        return state
    state = dataclasses.replace(state, settled=Settled(*observation.counts, now))
    move = state.move
    if (
        move is not None
        and move.cycles
        and move.changed_at
        and observation.counts == move.target_size
    ):
        state = dataclasses.replace(state, cycle_seconds=round(now - move.decided_at, 1))
    return state


def _current_windows(observation: PsObservation, state: ScalingState) -> tuple[Throughput, ...]:
    """Windows of the present setup, since all of it was at work."""
    known = state.settled
    if known is None or (known.workers, known.servers) != observation.counts:
        return ()
    since = max(known.since, observation.raised_at)
    return tuple(
        window for window in observation.windows if window.started_at >= since and window.steps > 0
    )


def _rate(window: Throughput) -> float:
    spent = window.ended_at - window.started_at - window.save_seconds
    return window.steps / max(spent, 1e-9)
