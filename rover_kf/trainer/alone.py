# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank is one process a round: another one that saves as the same rank would take its place."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.arena import Arena
from rover_kf.checkpoint.control import Seal
from rover_kf.trainer.settings import TrainerSettings


class Alone:
    """Whether nobody but this process has saved as its rank in its round.

    Args:
        settings: of the process.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self._rank, self._round = settings.rank, settings.round
        self._arena: Arena | None = None
        if settings.home is not None:
            self._arena = Arena(settings.home / names.ARENA_DIR / str(settings.local_rank))
        self._newest = 0
        """Sequence of this process's newest seal."""

    def sealed(self, seal: Seal) -> None:
        """This process has."""
        self._newest = max(self._newest, seal.sequence)

    def check(self) -> None:
        """Look at the slots; no copy of this process's is under way.

        Raises:
            CheckpointError: another process has.
        """
        # Without a launcher there are no rounds, and a process may have had one before it.
        if self._arena is None or not self._round:
            return
        found = self._arena.sealed()
        if any(seal.round == self._round and seal.sequence > self._newest for seal in found):
            raise errors.CheckpointError(
                f"another process has saved as rank {self._rank} since the launcher started it, "
                "and each would be restored with what the other one saved. Have the launcher start "
                "each rank (nproc-per-node), not the script (mp.spawn); and have one process save "
                "for those that it starts, or make trainings that follow each other (folds) jobs "
                "of their own"
            )
