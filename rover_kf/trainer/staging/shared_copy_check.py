# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a pod's first rank saves what another one of the pod leaves to it.

Each rank names its tensors by itself, so what one alone has (a model that rank 1 builds besides)
would be in no slot, and a restore would be the first to tell.
"""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer.restore_client import open_slot
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.state.flatten import FlatState


class SharedCopyCheck:
    """One a saver.

    Args:
        settings: of the process.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._saved: tuple[int, int] | None = None
        """Era and step of the save before, where its era has not been checked."""
        self._checked = -1

    def check(self, generation: int, step: int, parts: FlatState) -> None:
        """Compare with the first rank's slot of the save before, once an era; says nothing before.

        Args:
            generation: of the names, shapes and types (rover_kf.trainer.state.flatten_cache).
            step: that is about to be saved.
            parts: of the state.

        Raises:
            CheckpointError: the first rank does not save some of them; the message names them.
        """
        if not parts.delegated or self._checked == generation:
            return
        saved, self._saved = self._saved, (generation, step)
        if saved is None or saved[0] != generation:
            return
        found = self._names(saved[1])
        if found is None:
            return
        self._checked = generation
        lacking = sorted(parts.delegated - found)
        if lacking:
            raise errors.CheckpointError(
                f"rank {self._settings.rank} has {', '.join(lacking[:3])}, which its pod's first "
                f"rank does not save ({len(lacking)} of {len(parts.delegated)} tensors of "
                "modules and "
                f"optimizers): with {names.PREFIX}checkpoint.copy-per: pod it saves them for all. "
                "Give save the same objects on every rank, or leave that annotation out"
            )

    def _names(self, step: int) -> frozenset[str] | None:
        """Of what the first rank has saved of a step; None: that is not there."""
        assert self._settings.shared_dir is not None  # noqa: S101 - nobody saves outside rover-kf
        arena = Arena(self._settings.shared_dir / names.ARENA_DIR / "0")
        for seal in arena.find_seals(step, self._settings.round):
            path = str(arena.slot_path(seal.slot))
            try:
                with open_slot(RestoreReply(step, "memory", path, seal.length)) as (found, _):
                    return frozenset(found.tensors)
            except errors.CorruptSnapshot:
                return None  # a newer one replaces it: the next save looks again
        return None
