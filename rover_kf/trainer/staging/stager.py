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
from typing import Literal

import torch

from rover_kf.api.states import State
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import snapshot
from rover_kf.system import cpu_quota
from rover_kf.trainer.gc_pause import gc_paused
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.staging import copy_batches, optimizer_growth
from rover_kf.trainer.staging.copy_batches import CopySource
from rover_kf.trainer.staging.copy_threads import CopyThreads, SharedWork
from rover_kf.trainer.staging.cuda import Streams
from rover_kf.trainer.staging.mutation_check import MutationWatch, start_watch
from rover_kf.trainer.staging.overlap import OptimizerOwned, Overlap
from rover_kf.trainer.staging.overlap_check import OverlapCheck
from rover_kf.trainer.staging.plan_cache import CopyPlan, CopyPlanCache
from rover_kf.trainer.staging.reentrancy import ReentrancyGuard
from rover_kf.trainer.staging.slot_reservation import SlotReservation
from rover_kf.trainer.staging.slots import RequestArena, SlotBuffers
from rover_kf.trainer.state.addresses import Addresses, addresses, tensor_list
from rover_kf.trainer.state.flatten import FlatState
from rover_kf.trainer.state.flatten_cache import FlattenCache

OnSealed = Callable[[Seal, float], None]
"""Takes a seal and the seconds that its copy took, in whatever thread ended it."""


class Stager:
    """One a training process.

    Args:
        settings: of the process.
        request_arena: asks the sidecar for slots.
        on_sealed: takes each seal.
        replicated: whether every rank holds the same state.
        overlap: whether to copy while training computes. In a world of several ranks that hold
            different states all is copied at once: there a rank may clear the slot of the step
            before while another one still copies this step, and a crash would leave no common one.
            ``"check"``: copy at once, and report what would have changed meanwhile.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        request_arena: RequestArena,
        on_sealed: OnSealed,
        *,
        replicated: bool,
        overlap: bool | Literal["check"] = False,
    ) -> None:
        self._settings, self._on_sealed, self._replicated = settings, on_sealed, replicated
        self._overlaps = bool(overlap)
        self._check = OverlapCheck() if overlap == "check" else None
        self._slots, self._streams = SlotBuffers(request_arena), Streams()
        self._flatten_cache = FlattenCache(replicated=replicated)
        self.guard = ReentrancyGuard()
        """Of the calls that wait for a copy."""
        self._overlap, self._optimizer_owned = Overlap(self.guard), OptimizerOwned()
        helpers = _helper_count(settings)
        self._threads = CopyThreads(helpers)
        self._plans = CopyPlanCache(self._slots, single_thread=not helpers)
        self.issued, self.sealed = 0, 0
        """Saves that were requested, and those that were sealed; the others raised."""

    def prepare(self, state: Mapping[str, object], snapshot_bytes: int | None = None) -> None:
        """Get slots in the background, with room for what optimizers have yet to make.

        Args:
            state: as it will be saved.
            snapshot_bytes: of its snapshot, if one was restored: nothing has to be taken apart
                then.

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
        """
        if snapshot_bytes is None:
            parts = self._flatten_cache.flatten(state)
            snapshot_bytes = snapshot.plan(parts.entries(), parts.metadata).length
        to_come = optimizer_growth.pending_optimizer_bytes(state)
        self._slots.prepare(snapshot_bytes + to_come)

    def save(
        self, saved: State, state: Mapping[str, object], metrics: Mapping[str, str] | None = None
    ) -> None:
        """Copy the state into a slot and seal it, or begin to.

        Args:
            saved: what the save makes.
            state: of the rank.
            metrics: metadata that the snapshot has besides (rover_kf.checkpoint.format.metrics).

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
            ArenaTooSmall: the state does not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
            CheckpointError: both slots are being read for a minute, or the copy before failed; or
                a signal handler calls it in the middle of one.
        """
        with self.guard.held():
            self._overlap.finish()
            self.issued += 1
            with gc_paused():
                overlaps = self._start_copy(saved, state, metrics or {})
            if not overlaps:
                self._overlap.finish()

    def _start_copy(
        self, saved: State, state: Mapping[str, object], metrics: Mapping[str, str]
    ) -> bool:
        """Begin to copy; whether the copy may go on after save has returned."""
        parts = self._flatten_cache.flatten(state)
        on_device = _on_device(parts)
        alone = self._settings.world_size == 1
        overlaps = self._overlaps and (alone or (self._replicated and not parts.is_sharded))
        late, at = frozenset[str](), list[int]()
        if overlaps:
            at = addresses(tensor_list(parts.tensors))
            late = self._optimizer_owned.names(
                self._flatten_cache.generation, state, parts.tensors, at
            )
        if self._check is not None:
            tensors = {name: tensor for name, tensor in parts.tensors.items() if name in late}
            self._check.start(saved.step, tensors)
            overlaps, late = False, frozenset()
        if metrics:
            parts = dataclasses.replace(parts, metadata={**parts.metadata, **metrics})
        self._begin(saved, parts, late, at, on_device=on_device)
        return overlaps

    def save_parts(self, saved: State, parts: FlatState) -> None:
        """Copy named tensors into a slot and seal it.

        Raises:
            ArenaTooSmall: they do not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
            CheckpointError: both slots are being read for a minute, or the copy before failed; or
                a signal handler calls it in the middle of one.
        """
        with self.guard.held():
            self._overlap.finish()
            self.issued += 1
            self._flatten_cache.clear()
            self._begin(saved, parts, frozenset(), [], on_device=_on_device(parts))
            self._overlap.finish()

    def _begin(
        self,
        saved: State,
        parts: FlatState,
        deferred: frozenset[str],
        data_ptrs: Addresses,
        *,
        on_device: bool,
    ) -> None:
        plan, head = self._plans.plan_copy(self._flatten_cache.generation, parts, deferred)
        room = SlotReservation(self._slots, pinned=on_device)
        begun = time.perf_counter()
        seal = functools.partial(self._seal, room, plan.layout.length, parts.is_sharded, begun)
        source = CopySource(saved, tensor_list(parts.tensors), data_ptrs, on_device=on_device)
        try:
            rest = self._copy(
                plan, room, source, functools.partial(_write_header, room, head), seal
            )
        except BaseException:
            room.close()
            raise
        self._overlap.start(rest)

    def finish(self) -> None:
        """Wait for the copy that is under way.

        Raises:
            RoverError: it failed, which is raised once; or a signal handler calls it in the middle
                of a copy.
        """
        with self.guard.held():
            self._overlap.finish()
            if self._check is not None:
                self._check.finish()

    def check(self) -> None:
        """Raise what a copy that is done failed with; never waits."""
        if self._overlap.is_done:
            with self.guard.held():
                self._overlap.finish()

    def take_waited(self) -> float:
        """Seconds that optimizer steps have waited for copies since this was last called."""
        waited, self._overlap.waited_seconds = self._overlap.waited_seconds, 0.0
        return waited

    def close(self) -> None:
        """Wait for the copy and let go of the slots' memory.

        Raises:
            RoverError: the copy failed, or a signal handler calls it in the middle of one.
        """
        self.guard.check()
        try:
            self.finish()
        finally:
            self._plans.clear()
            if self._check is not None:
                self._check.close()
            self._overlap.close()
            self._threads.close()
            self._slots.close()

    def _copy(
        self,
        plan: CopyPlan,
        reservation: SlotReservation,
        source: CopySource,
        write_header: Callable[[], None],
        seal: Callable[[MutationWatch, BaseException | None], None],
    ) -> SharedWork:
        """Copy what cannot wait; gives the rest, which ends with the seal."""
        now = [batch for batch in plan.batches if not batch.deferred]
        late = [batch for batch in plan.batches if batch.deferred]
        early, later = [], []
        if source.on_device:
            early = self._streams.start(
                copy_batches.device_pairs(now, reservation.slot(), source), hold=True
            )
            later = self._streams.start(
                copy_batches.device_pairs(late, reservation.slot(), source), hold=False
            )
        waited = copy_batches.copy_calls(now, reservation.slot, source)
        rest = copy_batches.copy_calls(late, reservation.slot, source)
        (rest if late else waited).append(write_header)  # where all is waited for, nothing is left
        first = SharedWork(waited)
        self._threads.submit(first)
        try:
            first.wait()
        except BaseException:
            first.cancel()  # nobody may write into a slot that is let go of
            raise
        if first.error is not None:
            raise first.error
        return SharedWork(
            [*rest, *early, *later], functools.partial(seal, start_watch(late, source))
        )

    def _seal(  # noqa: PLR0917 - bound by position
        self,
        reservation: SlotReservation,
        length: int,
        pieces: bool,  # noqa: FBT001 - bound by position
        begun: float,
        mutation_watch: MutationWatch,
        error: BaseException | None,
    ) -> None:
        with contextlib.closing(reservation):
            mutation_watch.check()  # it may tell what a copy that failed has met
            if error is not None:
                return
            seal = reservation.slot_write().seal(
                state=mutation_watch.source.state,
                length=length,
                rank=self._settings.rank,
                world_size=self._settings.world_size,
                replicated=self._replicated and not pieces,
                pieces=pieces,
            )
        self.sealed += 1
        self._on_sealed(seal, time.perf_counter() - begun)


def _on_device(parts: FlatState) -> bool:
    # Without a context there are none: no need to ask thousands of tensors.
    known = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch's
    return known and any(tensor.is_cuda for tensor in parts.tensors.values())


def _write_header(reservation: SlotReservation, header: torch.Tensor) -> None:
    reservation.buffer()[: header.numel()].copy_(header)


def _helper_count(settings: TrainerSettings) -> int:
    return (
        min(torch.get_num_threads(), cpu_quota.threads_per_process(settings.local_world_size)) - 1
    )
