# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What failures cost the job: restarts of its budgets, and time between them.

What broke one round mostly does not break the next: the first restart of a row is made at once.
What breaks round after round (a service that is away, a node that starves) is given time, each time
twice as long. Else a budget of ten would be spent within seconds of an outage of minutes.

An error that comes again at the same place ends the job, since no restart helps. "Place" is the
traceback and the training's step. A script that reports no steps is at no known place, but for its
first seconds.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from rover_kf.api import names
from rover_kf.api.coordinator_state import FailureStreak, LastError
from rover_kf.api.faults import failure_kinds
from rover_kf.elastic.rendezvous.effects import truncate
from rover_kf.elastic.rendezvous.world import StepProgress, World

BEGINNING = 60.0
"""Seconds of a round in which a script that reports no steps counts as at its beginning."""
SLACK = 2
"""Steps; the ranks of a world end a step one after the other."""


@dataclasses.dataclass(slots=True)
class RepeatedErrorDetector:
    """The last error that a repetition would prove to be permanent."""

    last: LastError | None = None

    def is_repeat(self, signature: str, progress: StepProgress, now: float) -> bool:
        """Note an error of the round that ``progress`` is of; True if it is the last one again.

        Args:
            signature: of the error; empty where a repetition proves nothing.
            progress: of the round that the error ended.
            now: the time, by the clock that the round's begin was taken with.
        """
        unknown = not progress.any_reported and now - progress.began > BEGINNING
        if not signature or unknown:
            return False
        before, self.last = self.last, LastError(signature, progress.step)
        if before is None or before.signature != signature:
            return False
        if before.step is None or progress.step is None:
            return before.step is progress.step
        return abs(before.step - progress.step) <= SLACK


FIRST_SECONDS = 1.0
"""Before the second restart of a row; doubled with each further one."""
STABLE_SECONDS = 60.0
"""A round that lasted so long is no part of a row."""


def extend_streak(
    streak: FailureStreak, number: int, *, step: int | None, seconds: float
) -> FailureStreak:
    """The row with one failure more.

    Args:
        streak: until now.
        number: of the round that it ended; told again, or late, it changes nothing.
        step: the newest that the round had finished; None: none.
        seconds: that the round had lasted.
    """
    if number <= streak.round:
        return streak
    reached = -1 if step is None else step
    steady = reached > streak.best_step or seconds >= STABLE_SECONDS
    return FailureStreak(number, 1 if steady else streak.length + 1, max(streak.best_step, reached))


def backoff_seconds(streak: FailureStreak, max_seconds: float) -> float:
    """Seconds before the next round.

    Args:
        streak: with the failure that has just ended a round.
        max_seconds: by policy; 0: none is ever made.
    """
    doublings = min(streak.length - 2, 60)
    return min(FIRST_SECONDS * 2.0**doublings, max_seconds) if doublings >= 0 else 0.0


def newest_streak(current: FailureStreak, other: FailureStreak) -> FailureStreak:
    """Of what two coordinators knew, what was known last; equally new: the first."""
    return other if other.round > current.round else current


@dataclasses.dataclass(frozen=True, slots=True)
class RestartBudget:
    """Restarts allowed, and the rounds that were spent.

    A failure is counted once a round, whoever and however many report it. It spends the total, and
    what its kind may cost, where the policy states that.
    """

    allowed: int
    by_kind: tuple[tuple[str, int], ...] = ()
    """Of some kinds, how many of the restarts may be theirs."""
    spent: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The kind of failure by the round that it ended; empty: not known."""

    def consume(self, round_number: int, kind: str) -> RestartBudget:
        """The budget after a failure in that round; of two kinds the one that is told last."""
        return dataclasses.replace(self, spent={**self.spent, round_number: kind})

    def merge_spent(self, spent: Mapping[int, str]) -> RestartBudget:
        """The budget with what an earlier coordinator had counted; what is known here stays."""
        return dataclasses.replace(self, spent={**spent, **self.spent})

    @property
    def exceeded_reason(self) -> str:
        """Which budget does not hold, in words; empty while all do."""
        counted = collections.Counter(self.spent.values())
        for kind, allowed in self.by_kind:
            if counted[kind] > allowed:
                return f"the budget of {allowed} restarts for {kind} is spent"
        if len(self.spent) > self.allowed:
            return f"the budget of {self.allowed} restarts is spent"
        return ""


class RestartLimiter:
    """One a coordinator.

    Args:
        world: whose next round waits.
    """

    def __init__(self, world: World) -> None:
        self._world, failures = world, world.limits.failures
        self.budget = RestartBudget(
            failures.restarts, failure_kinds.parse_budgets(failures.restarts_by_kind)
        )
        self.streak = FailureStreak()

    def consume(self, round_number: int, kind: str, reason: str) -> str:
        """A failure that counts has ended a round.

        Returns:
            Why the job ends now; empty: it goes on.
        """
        world, progress = self._world, self._world.progress
        self.budget = self.budget.consume(round_number, kind)
        if overspent := self.budget.exceeded_reason:
            return f"{overspent}; last: {reason}"
        lasted = world.now - progress.began
        row = extend_streak(self.streak, round_number, step=progress.step, seconds=lasted)
        if row != self.streak:
            self.streak = row
            self._delay_next_round(reason)
        return ""

    def restore(self, streak: FailureStreak, *, waiting: bool) -> None:
        """Go on with an earlier coordinator's row of failures.

        Args:
            streak: as it was known there.
            waiting: whether the next round was still waited for then; how long nobody knows, so the
                wait begins anew.
        """
        newest = newest_streak(self.streak, streak)
        if newest is not self.streak:
            self.streak = newest
            if waiting:
                self._delay_next_round("told to the coordinator before this one")

    def _delay_next_round(self, reason: str) -> None:
        world = self._world
        seconds = backoff_seconds(self.streak, world.limits.failures.max_backoff)
        if not seconds:
            return
        world.not_before = world.now + seconds
        message = (
            f"the next round begins in {seconds:.0f} s at the earliest: {self.streak.length} "
            f"failures in a row, no step was new; last: {truncate(reason)}"
        )
        world.emit_event(names.EVENT_BACK_OFF, message, warning=True)
