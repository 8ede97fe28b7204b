# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of failures: restarts of the job's budgets, and time between them.

The first restart of a streak is immediate. Each further one waits twice as long, since an outage of
minutes would otherwise spend a budget of ten within seconds.

An error that repeats at the same place, its traceback and step, ends the job. A script that reports
no steps is at a known place only in its first seconds.
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
        """Note an error of a round; return whether it repeats the last one.

        An empty signature is of an error whose repetition proves nothing.
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
    """Extend a streak by a failure; one of an earlier round changes nothing.

    ``step`` is the newest that the round had finished, ``seconds`` its duration.
    """
    if number <= streak.round:
        return streak
    reached = -1 if step is None else step
    steady = reached > streak.best_step or seconds >= STABLE_SECONDS
    return FailureStreak(number, 1 if steady else streak.length + 1, max(streak.best_step, reached))


def backoff_seconds(streak: FailureStreak, max_seconds: float) -> float:
    """Return the seconds before the next round; ``max_seconds`` 0: there is no wait."""
    doublings = min(streak.length - 2, 60)
    return min(FIRST_SECONDS * 2.0**doublings, max_seconds) if doublings >= 0 else 0.0


def newest_streak(current: FailureStreak, other: FailureStreak) -> FailureStreak:
    """Return the newer of two coordinators' streaks; equally new: the first."""
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
    """A limiter of a world's restarts: their budget, and the time before the next round."""

    def __init__(self, world: World) -> None:
        self._world, failures = world, world.limits.failures
        self.budget = RestartBudget(
            failures.restarts, failure_kinds.parse_budgets(failures.restarts_by_kind)
        )
        self.streak = FailureStreak()

    def consume(self, round_number: int, kind: str, reason: str) -> str:
        """Note a failure that has ended a round; return why the job ends, if it does."""
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
        """Resume an earlier coordinator's streak.

        ``waiting``: the next round still waited then, for an unknown time, so the wait begins
        again.
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
