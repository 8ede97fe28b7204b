# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What failures cost the job: restarts of its budgets, and time between them."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.coordinator_state import FailureRow
from rover_kf.elastic import back_off
from rover_kf.elastic.budget import Budget
from rover_kf.elastic.reasons import shortened
from rover_kf.elastic.world import World


class Restarts:
    """One a coordinator.

    Args:
        world: whose next round waits.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.budget = Budget(world.limits.restarts, world.limits.restarts_by_kind)
        self.row = FailureRow()

    def pay(self, round_number: int, kind: str, reason: str) -> str:
        """A failure that counts has ended a round.

        Returns:
            Why the job ends now; empty: it goes on.
        """
        world, progress = self._world, self._world.progress
        self.budget = self.budget.spend(round_number, kind)
        if overspent := self.budget.overspent:
            return f"{overspent}; last: {reason}"
        lasted = world.now - progress.began
        row = back_off.after(self.row, round_number, step=progress.step, seconds=lasted)
        if row != self.row:
            self.row = row
            self._hold(reason)
        return ""

    def recall(self, row: FailureRow, *, held: bool) -> None:
        """Go on with an earlier coordinator's row of failures.

        Args:
            row: as it was known there.
            held: whether the next round was still waited for then; how long nobody knows, so the
                wait begins anew.
        """
        newest = back_off.newer(self.row, row)
        if newest is not self.row:
            self.row = newest
            if held:
                self._hold("told to the coordinator before this one")

    def _hold(self, reason: str) -> None:
        world, seconds = self._world, back_off.pause(self.row, self._world.limits.back_off)
        if not seconds:
            return
        world.not_before = world.now + seconds
        message = (
            f"the next round begins in {seconds:.0f} s at the earliest: {self.row.length} failures "
            f"in a row, no step was new; last: {shortened(reason)}"
        )
        world.tell(names.EVENT_BACK_OFF, message, warning=True)
