# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What can never become durable: of it no wait brings a checkpoint, and no restart another one.

A job whose processes have all ended with 0 has still failed where its newest state is of that kind:
its pods would wait, end, and train again for the same end.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.api.checkpoints import Left
from rover_kf.api.membership import Round
from rover_kf.checkpoint import rank_ranges
from rover_kf.coordinator.commit.committer import Committer
from rover_kf.coordinator.commit.sealed_steps import SealAccount


class Unstorable:
    """One a coordinator.

    Args:
        seals: of all ranks.
        committer: of their reports.
    """

    def __init__(self, seals: SealAccount, committer: Committer) -> None:
        self._seals, self._committer = seals, committer
        self._places: tuple[tuple[str, int], ...] = ()
        """Of the running round's ranks; none of a round whose begin was not seen."""
        self._left: dict[str, Mapping[str, int]] = {}
        self._ended = False
        self.verdict = ""
        """Why the job has failed at its end; empty: it has not, or trains."""

    def formed(self, current: Round | None) -> None:
        """A round runs.

        Args:
            current: None: this coordinator has not seen its begin. Whoever saved may have told its
                predecessor, and have been lost since: then a restart helps.
        """
        self._places = current.places() if current else ()
        self._left.clear()

    def ended(self) -> None:
        """No process trains any more."""
        self._ended = True

    def left(self, told: Left) -> None:
        """A pod's processes have ended."""
        self._left[told.pod] = told.steps

    def why(self, step: int) -> str:
        """Why that step never becomes durable; empty: it may yet.

        Args:
            step: that somebody waits for.
        """
        why = self._committer.unlike if self._committer.is_unlike(step) else self._left_out(step)
        if self._ended:
            self.verdict = self.verdict or why
        return why

    def _left_out(self, step: int) -> str:
        lacking = self._seals.lacking(step) if self._ended else ()
        if not lacking or not all(self._has_not(rank, step) for rank in lacking):
            return ""
        return (
            f"step {step} does not come to storage: all processes have ended, and ranks "
            f"{rank_ranges.shown(lacking)} have not saved it; every rank has to"
        )

    def _has_not(self, rank: int, step: int) -> bool:
        """Whether its pod has told so: the news of a save may be behind."""
        if rank >= len(self._places):
            return False
        pod, local_rank = self._places[rank]
        return pod in self._left and self._left[pod].get(str(local_rank), 0) < step
