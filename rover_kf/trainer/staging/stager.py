# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Live tensors into a slot, at the speed of one copy, or while training computes.

Views of both slots are made once a layout; a save writes the header and copies batches with
``torch._foreach_copy_``, which does all copies without the interpreter's lock. A state that changed
its tensors (an optimizer's lazy state) gets a new layout and, if it needs one, a larger arena; what
was sealed before stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping

import torch

from rover_kf import errors
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import snapshot
from rover_kf.system import cpu_quota
from rover_kf.trainer.gc_pause import without_collection
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.staging import copy_batches, optimizer_growth
from rover_kf.trainer.staging.copy_batches import Source
from rover_kf.trainer.staging.copy_threads import Hands, Work
from rover_kf.trainer.staging.cuda import Streams
from rover_kf.trainer.staging.mutation_check import Spoilt, Watch, watch
from rover_kf.trainer.staging.overlap import Overlap, Owned
from rover_kf.trainer.staging.overlap_policy import Way
from rover_kf.trainer.staging.plan_cache import Plan, Plans
from rover_kf.trainer.staging.reentrancy import Turn
from rover_kf.trainer.staging.shared_copy_check import LeadCheck
from rover_kf.trainer.staging.slot_reservation import Room
from rover_kf.trainer.staging.slots import AskArena, Slots
from rover_kf.trainer.state.addresses import Addresses, addresses_of, listed
from rover_kf.trainer.state.flatten import Parts
from rover_kf.trainer.state.flatten_cache import Recall

Told = Callable[[Seal, float], None]
"""Takes a seal and the seconds that its copy took, in whatever thread ended it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """What a snapshot's seal says of its tensors, as the record has it."""

    pieces: bool
    ranks: int


class Saver:
    """One a training process.

    Args:
        settings: of the process.
        ask_arena: asks the sidecar for slots.
        told: takes each seal.
        replicated: whether every rank holds the same state.
        overlap: whether to copy while training computes; None: if a core is spare.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        ask_arena: AskArena,
        told: Told,
        *,
        replicated: bool,
        overlap: bool | None = None,
    ) -> None:
        self._settings, self._told, self._replicated = settings, told, replicated
        self.way = Way(settings, asked=overlap)
        self._slots, self._streams = Slots(ask_arena), Streams()
        self._recall = Recall(replicated=replicated, ranks=settings.slot_ranks)
        self._lead_check = LeadCheck(settings)
        self.turn = Turn()
        """Of the calls that wait for a copy."""
        self._overlap, self._owned = Overlap(self.turn), Owned()
        self._overlapped = False
        helpers = _helpers(settings)
        self._hands = Hands(helpers)
        self._plans = Plans(self._slots, alone=not helpers)
        self.issued, self.sealed, self.spoilt = 0, 0, 0
        """Saves that were asked for, those that were sealed, and those that were told as spoilt in
        the log, where nobody asked for overlap; the others raised."""
        self.unsaved: int | None = None
        """Such a step, until the next save."""

    def prepare(
        self, state: Mapping[str, object], known_bytes: int | None = None, *, light: bool = False
    ) -> None:
        """Get slots in the background, with room for what optimizers have yet to make.

        Args:
            state: as it will be saved.
            known_bytes: of its snapshot, if one was restored: nothing has to be taken apart then.
            light: whether that one has the rank's own tensors alone.

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
        """
        if known_bytes is None:
            parts = self._recall.take_apart(state)
            known_bytes = snapshot.plan(parts.entries(), parts.metadata).length
            light = not parts.ranks
        to_come = 0 if light else optimizer_growth.bytes_to_come(state)
        self._slots.prepare(known_bytes + to_come)

    def save(
        self, step: int, state: Mapping[str, object], measured: Mapping[str, str] | None = None
    ) -> None:
        """Copy the state into a slot and seal it, or begin to.

        Args:
            step: its number.
            state: of the rank.
            measured: metadata that the snapshot has besides (rover_kf.checkpoint.format.metrics).

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
            ArenaTooSmall: the state does not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
            CheckpointError: both slots are being read for a minute, or the copy before failed; or
                a signal handler calls it in the middle of one.
        """
        with self.turn.taken():
            self._finish()
            self.issued, self.unsaved = self.issued + 1, None
            with without_collection():
                overlaps = self._start(step, state, measured or {})
            if not overlaps:
                self._overlap.finish()

    def _start(self, step: int, state: Mapping[str, object], measured: Mapping[str, str]) -> bool:
        """Begin to copy; whether the copy may go on after save has returned."""
        parts = self._recall.take_apart(state, trusting=self._overlapped)
        on_device = _on_device(parts)
        self._overlapped = overlaps = self.way.overlaps(on_device=on_device)
        late, at = frozenset[str](), list[int]()
        if overlaps:
            at = addresses_of(parts.tensors)
            late = self._owned.names(self._recall.era, state, parts.tensors, at)
        if parts.assumed and not self._plans.alike(parts, late):
            self._recall.forget()
            return self._start(step, state, measured)
        if measured:
            parts = dataclasses.replace(parts, metadata={**parts.metadata, **measured})
        self._begin(step, parts, late, at, on_device=on_device)
        return overlaps

    def save_parts(self, step: int, parts: Parts) -> None:
        """Copy named tensors into a slot and seal it.

        Raises:
            ArenaTooSmall: they do not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
            CheckpointError: both slots are being read for a minute, or the copy before failed; or
                a signal handler calls it in the middle of one.
        """
        with self.turn.taken():
            self._finish()
            self.issued, self.unsaved = self.issued + 1, None
            self._recall.forget()
            self._begin(step, parts, frozenset(), [], on_device=_on_device(parts))
            self._overlap.finish()

    def _begin(
        self, step: int, parts: Parts, late: frozenset[str], at: Addresses, *, on_device: bool
    ) -> None:
        self._lead_check.check(self._recall.era, step, parts)
        plan, head = self._plans.fit(self._recall.era, parts, late)
        room = Room(self._slots, pinned=on_device)
        begun = time.perf_counter()
        kind = _Kind(parts.in_pieces, parts.ranks)
        seal = functools.partial(self._seal, room, plan.layout.length, kind, begun)
        source = Source(step, listed(parts.tensors), at, on_device=on_device)
        try:
            rest = self._copy(plan, room, source, functools.partial(_head, room, head), seal)
        except BaseException:
            room.close()
            raise
        self._overlap.start(rest)

    def finish(self) -> None:
        """Wait for the copy that is under way.

        Raises:
            RoverError: it failed, told once, unless it is in the log, as ``spoilt`` has it; or a
                signal handler calls it in the middle of a copy.
        """
        with self.turn.taken():
            self._finish()

    def _finish(self) -> None:
        try:
            self._overlap.finish()
        except errors.RoverError as error:
            self._recall.forget()  # what was taken for granted may have been the reason
            if not isinstance(error, Spoilt) or not self.way.leaves(error):
                raise
            self.spoilt, self.unsaved = self.spoilt + 1, error.step

    def check(self) -> None:
        """Raise what a copy that is done failed with; never waits."""
        if self._overlap.is_done:
            self.finish()

    def take_waited(self) -> float:
        """Seconds that optimizer steps have waited for copies since this was last called."""
        waited, self._overlap.waited_seconds = self._overlap.waited_seconds, 0.0
        return waited

    def close(self) -> None:
        """Wait for the copy and let go of the slots' memory.

        Raises:
            RoverError: the copy failed, or a signal handler calls it in the middle of one.
        """
        self.turn.check()
        try:
            self.finish()
        finally:
            self._plans.forget()
            self._overlap.close()
            self._hands.close()
            self._slots.close()

    def _copy(
        self,
        plan: Plan,
        room: Room,
        source: Source,
        heading: Callable[[], None],
        seal: Callable[[Watch, BaseException | None], None],
    ) -> Work:
        """Copy what cannot wait; gives the rest, which ends with the seal."""
        now = [batch for batch in plan.batches if not batch.late]
        late = [batch for batch in plan.batches if batch.late]
        early, later = [], []
        if source.on_device:
            early = self._streams.start(
                copy_batches.device_pairs(now, room.slot(), source), hold=True
            )
            later = self._streams.start(
                copy_batches.device_pairs(late, room.slot(), source), hold=False
            )
        waited = copy_batches.copies(now, room.slot, source)
        rest = copy_batches.copies(late, room.slot, source)
        (rest if late else waited).append(heading)  # where all is waited for, nothing is left
        first = Work(waited)
        self._hands.lend(first)
        try:
            first.wait()
        except BaseException:
            first.cancel()  # nobody may write into a slot that is let go of
            raise
        if first.error is not None:
            raise first.error
        return Work([*rest, *early, *later], functools.partial(seal, watch(late, source)))

    def _seal(  # noqa: PLR0917 - bound by position
        self,
        room: Room,
        length: int,
        kind: _Kind,
        begun: float,
        watched: Watch,
        error: BaseException | None,
    ) -> None:
        with contextlib.closing(room):
            watched.check()  # it may tell what a copy that failed has met
            if error is not None:
                return
            seal = room.filling().seal(
                step=watched.source.step,
                length=length,
                rank=self._settings.rank,
                world_size=self._settings.world_size,
                round_=self._settings.round,
                replicated=self._replicated and not kind.pieces and kind.ranks > 0,
                pieces=kind.pieces,
                ranks=kind.ranks,
            )
        self.sealed += 1
        self._told(seal, time.perf_counter() - begun)


def _on_device(parts: Parts) -> bool:
    # Without a context there are none: no need to ask thousands of tensors.
    known = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch's
    return known and any(tensor.is_cuda for tensor in parts.tensors.values())


def _head(room: Room, head: torch.Tensor) -> None:
    room.buffer()[: head.numel()].copy_(head)


def _helpers(settings: TrainerSettings) -> int:
    return min(torch.get_num_threads(), cpu_quota.share(settings.local_world_size)) - 1
