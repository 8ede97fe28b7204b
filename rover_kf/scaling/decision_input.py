# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The frame of every decision: who waits for what, how a change is verified, what a try costs.

Replicas (``decide``) and workers with parameter servers (``ps_decide``) fill it with their sizes,
measurements and rules.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.samples import Throughput
from rover_kf.scaling.policy import AutoscalingPolicy
from rover_kf.scaling.scaling_state import JobObservation, Move, ScalingState

STAY, SCALE, ROLL_BACK = "stay", "scale", "roll_back"

NOTHING_NEW = "no new window since the last look"
"""Reason of a decision that repeats the last one; callers need not keep it."""

LAST_SHARE = 0.1
"""No change in the last tenth of the work: it would hardly be paid back."""

UNKNOWN_WORK_SECONDS = 3600.0
"""Time left that is assumed when the trainer does not say how many steps there will be."""

LATE_PRICE = 1000.0
"""Replica-seconds that a second after the deadline costs: whatever helps to meet it pays."""

TOLERANCE = 0.02
"""Noise allowed below the throughput that a changed world needed."""
CLEAR = 0.85
"""Of the throughput that was needed: less in one window is no noise."""
CYCLE_JOINS = 2.0
"""Times the patience with a live change: all pods are made anew."""

QUANTILES = (-1.28, -0.52, 0.0, 0.52, 1.28)
"""Of the normal distribution: middles of five equally likely parts."""

Size = TypeVar("Size")
Decided = tuple[ScaleDecision, ScalingState]


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingProposal:
    """A job as scaling sees it, and where it would go, whatever there is room for."""

    current: JobObservation
    """With the model of its throughput, which is fitted when somebody asks for it."""
    decision: ScaleDecision | None = None
    """None while a change that is written down has still to be made."""
    state: ScalingState = dataclasses.field(default_factory=ScalingState)
    """To be kept with the decision."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate(Generic[Size]):
    """A size that might be gone to."""

    size: Size
    rate: float
    """As a model predicts."""
    expected_cost: float
    """J of going there, with the way there and perhaps back."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionInput(abc.ABC, Generic[Size]):
    """Everything that one decision reckons with: the job, its policy, the memory and the prices."""

    policy: AutoscalingPolicy
    state: ScalingState
    now: float
    windows: tuple[Throughput, ...]
    """At the present size, since it is at work."""
    current: Size
    label: str
    """The same for a person."""
    steady: bool
    """Whether all of it trains."""
    rate: float
    """What is measured at the present size, a second; 0 if nothing is."""
    seconds_left: float
    """Of work at the present rate."""
    nearly_done: bool
    """Whether only the last share of the work is left."""
    allowed: str
    """Sizes that may be chosen, for a person."""
    unit: str
    """Of rates."""
    rate_format: str

    # -- what the kinds of jobs differ in ----------------------------------------------------------

    @abc.abstractmethod
    def counts(self, size: Size) -> tuple[int, int]:
        """Workers and parameter servers of a size."""

    @abc.abstractmethod
    def cost_per_second(self, size: Size) -> float:
        """What a second of a size costs, in replicas, with the price of waiting."""

    @abc.abstractmethod
    def change_seconds(self, size: Size) -> float:
        """That going to a size takes, or coming back from it."""

    @abc.abstractmethod
    def fallback(self, move: Move) -> tuple[Size, float]:
        """Size to go back to where a move disappoints, with its rate."""

    @abc.abstractmethod
    def return_blocker(self, move: Move) -> str:
        """Why a move cannot be taken back; empty if it can."""

    @abc.abstractmethod
    def check(self) -> Decided | None:
        """What goes before every reckoning; None if nothing does."""

    @abc.abstractmethod
    def optimise(self) -> Decided:
        """Find the cheapest size within reach and see whether going there pays."""

    @abc.abstractmethod
    def roll_back(self, move: Move, reason: str) -> Decided:
        """Ban the size of a move and leave it."""

    # -- the frame ---------------------------------------------------------------------------------

    def decide(self) -> Decided:
        """Wait for a change under way, verify one that was made, or look for a better size."""
        state, policy, move = self.state, self.policy, self.state.move
        if move is not None and not move.changed_at:
            return self.stay(f"the change of {move.change} is being made"), state
        if move is not None and self.counts(self.current) != move.target_size:
            state = dataclasses.replace(state, move=None)
            return self.stay(f"set to {self.label} by someone else"), state
        if move is not None:
            return self._verify(move)
        if (checked := self.check()) is not None:
            return checked
        if len(self.windows) < policy.settle_windows:
            have = f"{len(self.windows)} of {policy.settle_windows} windows"
            return self.stay(f"{have} measured at {self.label}"), state
        # Half a window of slack: the same window may come with a slightly other time (clock skew).
        if self.windows[-1].ended_at <= state.seen_until + policy.window_seconds / 2:
            return self.stay(NOTHING_NEW), state
        state = dataclasses.replace(state, seen_until=self.windows[-1].ended_at)
        return dataclasses.replace(self, state=state).optimise()

    def _verify(self, move: Move) -> Decided:
        """Check a change that was made: keep it, take it back, or wait for windows."""
        policy = self.policy
        # A single window so far below what was needed is no noise.
        fails_clearly = bool(self.windows) and self.rate < move.needed * CLEAR
        if len(self.windows) < policy.settle_windows and not fails_clearly:
            waited = self.now - move.changed_at
            patience = policy.join_seconds * (CYCLE_JOINS if move.cycles else 1.0)
            if self.windows or self.steady or waited <= patience:
                have = f"{len(self.windows)} of {policy.settle_windows} windows"
                return self.stay(f"verifying {self.label}: {have}"), self.state
            reason = f"{self.label} did not train together within {waited:.0f} s"
            return self.roll_back(move, reason)
        rates = (self.rate, move.baseline, move.predicted, move.needed)
        rate, before, predicted, needed = (format(one, self.rate_format) for one in rates)
        numbers = (
            f"{rate} {self.unit} at {self.label}, {before} before, "
            f"{predicted} predicted, {needed} needed"
        )
        done = dataclasses.replace(
            self.state, move=None, seen_until=self.windows[-1].ended_at, votes=0, vote_direction=0
        )
        if self.rate >= move.needed * (1 - TOLERANCE):
            return self.stay(f"verified: {numbers}"), dataclasses.replace(done, verified=True)
        fallback, fallback_rate = self.fallback(move)
        saved = self.cost(self.current, self.rate) - self.cost(fallback, fallback_rate)
        late = saved <= self.change_cost(fallback) or self.nearly_done
        if why := "too late to go back" if late else self.return_blocker(move):
            done = done.with_ban(move.target, policy.ban_seconds, self.now, move.target_servers)
            return self.stay(f"disappointing, but it stays: {why}; {numbers}"), done
        return self.roll_back(move, numbers)

    # -- prices and decisions ----------------------------------------------------------------------

    def cost(self, size: Size, rate: float) -> float:
        """J: replica-seconds for the work left, with the price of waiting and lateness."""
        seconds = self.seconds_left * self.rate / rate
        late = 0.0
        if self.policy.deadline is not None:
            late = max(0.0, self.now + seconds - self.policy.deadline)
        return seconds * self.cost_per_second(size) + late * LATE_PRICE

    def change_cost(self, size: Size) -> float:
        """Replica-seconds that going to the size takes."""
        return self.change_seconds(size) * self.cost_per_second(size)

    def candidates(
        self,
        sizes: Iterable[Size],
        predict: Callable[[Size], tuple[float, float]],
        fallback: tuple[Size, float],
    ) -> list[Candidate[Size]]:
        """Those of the sizes that are not banned, cheapest first.

        ``predict`` returns the rate of a size, and the spread of that in log space.
        """
        banned = self.state.banned_setups(self.now)
        found = []
        for size in sizes:
            if self.counts(size) not in banned:
                rate, spread = predict(size)
                found.append(
                    Candidate(size, rate, self._expected_cost(size, rate, spread, fallback))
                )
        return sorted(found, key=lambda offer: offer.expected_cost)

    def _expected_cost(
        self, size: Size, rate: float, spread: float, fallback: tuple[Size, float]
    ) -> float:
        """What a size is expected to cost, if it is tried, and left again where it is worse."""
        back = self.cost(*fallback) + self.change_seconds(size) * self.cost_per_second(fallback[0])
        total = 0.0
        for quantile in QUANTILES:
            there = rate * math.exp(spread * quantile)
            total += min(self.cost(size, there), back + self._trial_cost(size, there, fallback))
        return total / len(QUANTILES) + self.change_cost(size)

    def _trial_cost(self, size: Size, rate: float, fallback: tuple[Size, float]) -> float:
        """What is lost while windows show that the size is worse than home."""
        seconds = min(self.policy.settle_windows * self.policy.window_seconds, self.seconds_left)
        work_at_home = self.cost_per_second(fallback[0]) / fallback[1]
        return max(0.0, seconds * self.cost_per_second(size) - seconds * rate * work_at_home)

    def pause_reason(self, change_seconds: float) -> str:
        """Why the last change is too fresh for another one; empty if it is not."""
        wait = max(self.policy.cooldown_seconds, 5 * change_seconds)
        since = self.now - self.state.changed_at
        if not self.state.changed_at or since >= wait:
            return ""
        return f"{since:.0f} s since the last change, {wait:.0f} s are kept between two"

    def stay(self, reason: str) -> ScaleDecision:
        """A decision to stay."""
        return self.decision(STAY, self.current, reason, self.rate)

    def decision(self, action: str, target: Size, reason: str, predicted: float) -> ScaleDecision:
        """A decision with this case's measurements."""
        (workers, servers), (more, target_servers) = self.counts(self.current), self.counts(target)
        banned = sorted(self.state.banned_setups(self.now))
        return ScaleDecision(
            at=self.now,
            action=action,
            current=workers,
            target=more,
            reason=reason,
            measured=self.rate,
            predicted=predicted,
            restart_seconds=self.change_seconds(target),
            windows=len(self.windows),
            seconds_left=round(self.seconds_left, 1),
            allowed=self.allowed,
            banned=", ".join(f"{many} with {few} PS" if few else f"{many}" for many, few in banned),
            servers=servers,
            target_servers=target_servers,
        )
