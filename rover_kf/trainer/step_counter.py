# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of steps, which go up: of what is saved, a restore takes the highest."""

from __future__ import annotations

import operator
import os
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.trainer.settings import TrainerSettings


class SingleWriterCheck:
    """A check that no other process has saved as this rank in this round.

    Without a launcher a round begins when a process restores: the check then ends with the restore.

    Args:
        settings: of the process.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self._rank, self._round = settings.rank, settings.round_id
        self._arena: Arena | None = None
        if settings.shared_dir is not None:
            self._arena = Arena(settings.shared_dir / names.ARENA_DIR / str(settings.local_rank))
        self._newest = 0
        """Sequence of this process's newest seal."""
        self._restored = False

    def record_restored(self) -> None:
        """Accept what earlier processes saved: this one continues their states."""
        self._restored = True

    def record_seal(self, seal: Seal) -> None:
        """Note a seal of this process."""
        self._newest = max(self._newest, seal.sequence)

    def check_save(self) -> None:
        """Look at the slots before a save; no copy of this process's is under way.

        Raises:
            CheckpointError: another process has saved.
        """
        if not self._round.number and not self._restored and (earlier := self._others()):
            raise errors.CheckpointError(
                f"an earlier process has saved {earlier[0].state} as rank {self._rank}, and this "
                "one would save other states under the same names. Call restore() before the "
                "first save: it returns 0 if nothing was saved"
            )
        self.check()

    def check(self) -> None:
        """Look at the slots before a restore; no copy of this process's is under way.

        Raises:
            CheckpointError: another process has saved.
        """
        # Without a launcher there are no rounds, and a process may have had one before it.
        if self._round.number and any(seal.state.round == self._round for seal in self._others()):
            raise errors.CheckpointError(
                f"another process has saved as rank {self._rank} since the launcher started it, "
                "and each would be restored with what the other one saved. Have the launcher start "
                "each rank (nproc-per-node), not the script (mp.spawn); and have one process save "
                "for those that it starts, or make trainings that follow each other (folds) jobs "
                "of their own"
            )

    def _others(self) -> list[Seal]:
        """Seals of other processes; older ones of this process have smaller sequence numbers."""
        if self._arena is None:
            return []
        return [seal for seal in self._arena.sealed() if seal.sequence > self._newest]


class StepCounter:
    """The saves and restores of a process, and which may follow."""

    def __init__(self, settings: TrainerSettings) -> None:
        self.writer_check = SingleWriterCheck(settings)
        """Whether other processes have saved as this one."""
        self._round = settings.round_id
        self._newest: State | None = None
        """That was saved or restored, under the name that the round stores it by."""
        self.reported = 0
        """Step that the script told last, or that was restored; 0: none."""
        self._restore_requested = self._saved_since = False
        self._restore_owner: object = None
        self._restorer_is_open = self._saver_is_open = False
        self._save_owner: object = None
        self.is_finished = False
        """A training that has asked what there is to restore is closed."""

    @property
    def last(self) -> int:
        """Step that was saved or restored; 0: none."""
        return self._newest.step if self._newest else 0

    def next_state(self, step: int) -> State:
        """What a save of the step makes now."""
        again = self._newest is not None and self._newest.step == step
        return State(self._round, step, self._newest.save + 1 if again and self._newest else 1)

    def state_of(self, step: int) -> State:
        """The newest save of a step, of this round or of what it resumed from."""
        if self._newest is not None and self._newest.step == step:
            return self._newest
        return State(self._round, step)

    def claim_restore(self, owner: object) -> None:
        """Reserve restores of this process for one owner.

        Raises:
            CheckpointError: another one has.
        """
        saver = self._save_owner if self._saver_is_open else None
        if self._restore_owner not in (None, owner) or saver not in (None, owner):
            raise errors.CheckpointError(
                "another Checkpointer of this process has restored or saved already: a process "
                "goes on with one state, and a second training would take the first one's. Use one "
                "Checkpointer for all, with what they need in one state (as the number of a fold) "
                "and steps that count on; or make each training a job of its own"
            )
        self._restore_owner, self._restorer_is_open = owner, True

    def release(self, owner: object) -> None:
        """Note that the owner is closed: another may save if this one only restored."""
        if owner is self._restore_owner:
            self._restorer_is_open = False
        if owner is self._save_owner:
            self._saver_is_open = False

    def claim_save(self, owner: object) -> None:
        """Reserve saves of this process for one owner.

        Raises:
            CheckpointError: another one has saved, or has restored and is open.
        """
        restorer = self._restore_owner if self._restorer_is_open else None
        if restorer not in (None, owner) or self._save_owner not in (None, owner):
            raise errors.CheckpointError(
                "another Checkpointer or DirectoryCheckpointer of this process saves already: both "
                "would write the same two slots under the same step numbers, and each would be "
                "restored with what the other one saved. Use one for all, with everything in one "
                "state (averaged weights, say, as another entry)"
            )
        self._save_owner, self._saver_is_open = owner, True

    def begin_restore(self) -> None:
        """Note that a restore is requested.

        Raises:
            CheckpointError: steps were saved since the process asked first; its round's answer is
                older than they are.
        """
        if self._saved_since:
            raise errors.CheckpointError(
                "steps were saved since this process restored; what they hold is restored by a new "
                "process: end this one, or keep a copy of your own to go back to"
            )
        self._restore_requested = True

    def record_restored(self, reply: RestoreReply) -> None:
        """The process resumes from what the reply names, in the round that it names."""
        self.writer_check.record_restored()
        self._round = reply.round
        self._newest = reply.state.restored_in(reply.round) if reply.state else None
        self.reported = self.last

    def record_closed(self) -> None:
        """A Checkpointer of this process is."""
        self.is_finished = self.is_finished or self._restore_requested

    def record_saved(self, state: State) -> None:
        """It was saved."""
        self._newest, self._saved_since = state, self._restore_requested

    def is_due(self, step: int, every: int) -> bool:
        """Whether the step is a multiple of ``every``, or the first that was told past one."""
        return step % every == 0 or step // every > self.reported // every


_COUNTERS: dict[object, StepCounter] = {}
"""Global since it is the process's: objects of a script that know nothing of each other ask it."""


def step_counter_of(settings: TrainerSettings) -> StepCounter:
    """What the process has saved and restored, whichever object asks."""
    if settings.shared_dir is None:
        return StepCounter(settings)
    place = (os.getpid(), settings.shared_dir, settings.local_rank, settings.round)
    return _COUNTERS.setdefault(place, StepCounter(settings))


def checked_step(step: Any, last: int) -> int:
    """Return the number of a step that may be saved.

    Whole scalars of NumPy and torch count. ``last`` is 0 if nothing was saved or restored.

    Raises:
        InputError: it is no whole number, below 1 or below the last one; the same again is another
            try.
    """
    try:
        number = operator.index(step)
    except (TypeError, RuntimeError, ValueError) as cause:
        raise errors.InputError(f"step is {step!r}; a whole number is needed") from cause
    if number < 1:
        raise errors.InputError(
            f"step is {number}; count steps from 1: 0 is what restore returns where nothing was "
            "saved"
        )
    if number < last:
        raise errors.InputError(
            f"step {number} after step {last}, which this process has saved or restored: a restore "
            "takes the highest number, so what is saved below it would be lost; count on from "
            f"{last + 1}, also where the script goes back to earlier weights"
        )
    return number
