# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a round save at all: a script may do so on rank 0 alone; pure."""

from __future__ import annotations

from rover_kf.api.checkpoints import Sealed

_SAVES, _SECONDS = 4, 10.0
"""Of one rank: ranks train in step, so one that has not saved meanwhile does not save at all. A
sidecar that is started anew, or slow, tells of a save some seconds late."""


class Savers:
    """One a coordinator."""

    def __init__(self) -> None:
        self._round = 0
        self._steps: dict[int, set[int]] = {}
        """Of each rank that has saved in that round: how many suffices."""
        self._began = 0.0
        self._told = False

    def idle(self, sealed: Sealed, now: float) -> tuple[int, ...]:
        """Take a report; ranks that never save, once a round.

        Args:
            sealed: by one rank.
            now: monotonic seconds.
        """
        if sealed.restored or sealed.round < self._round:
            return ()
        if sealed.round > self._round:
            self._round, self._steps, self._began, self._told = sealed.round, {}, now, False
        saved = self._steps.setdefault(sealed.rank, set())
        if len(saved) < _SAVES:
            saved.add(sealed.step)
        if self._told or len(saved) < _SAVES or now - self._began < _SECONDS:
            return ()
        self._told = True
        return tuple(rank for rank in range(sealed.world_size) if rank not in self._steps)
