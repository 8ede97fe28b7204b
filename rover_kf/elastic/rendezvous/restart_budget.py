# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What failures cost the job: restarts of its budgets, and time between them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from rover_kf.api import names
from rover_kf.api.coordinator_state import FailureStreak
from rover_kf.elastic.rendezvous import backoff
from rover_kf.elastic.rendezvous.event_text import truncate
from rover_kf.elastic.rendezvous.world import World


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
        self._world = world
        self.budget = RestartBudget(world.limits.restarts, world.limits.restarts_by_kind)
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
        row = backoff.extend_streak(self.streak, round_number, step=progress.step, seconds=lasted)
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
        newest = backoff.newest_streak(self.streak, streak)
        if newest is not self.streak:
            self.streak = newest
            if waiting:
                self._delay_next_round("told to the coordinator before this one")

    def _delay_next_round(self, reason: str) -> None:
        world, seconds = (
            self._world,
            backoff.backoff_seconds(self.streak, self._world.limits.max_backoff),
        )
        if not seconds:
            return
        world.not_before = world.now + seconds
        message = (
            f"the next round begins in {seconds:.0f} s at the earliest: "
            f"{self.streak.length} failures "
            f"in a row, no step was new; last: {truncate(reason)}"
        )
        world.emit_event(names.EVENT_BACK_OFF, message, warning=True)
