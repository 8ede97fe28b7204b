# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training script calls: restore once, then one line a step.

::

    checkpointer = rover_kf.Checkpointer()
    start = checkpointer.restore(state)
    for step in range(start + 1, steps + 1):
        ...
        checkpointer.step(step, state)

Outside rover-kf (no ROVER_HOME) the same lines do nothing but say so once, so that a script runs
anywhere.
"""

# Long because each public method of Checkpointer is documented here, and they share one order of
# effects in a step.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaReply, RequestedBoxes, RestoreReply
from rover_kf.api.samples import StepSample
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import metrics as format_metrics
from rover_kf.system import cpu_quota, process_end
from rover_kf.system.steady_clock import MonotonicWallClock
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.ddp.tracker import BucketTracker
from rover_kf.trainer.drain import Drain
from rover_kf.trainer.gc_pause import gc_paused
from rover_kf.trainer.phase import Phase
from rover_kf.trainer.restore.compatibility import warn_detached_state_dicts
from rover_kf.trainer.restore.prefetch import RestorePrefetch
from rover_kf.trainer.restore_client import PATIENCE_SECONDS, RestoreClient
from rover_kf.trainer.settings import InactiveNotice, TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient, notify
from rover_kf.trainer.staging.stager import Stager
from rover_kf.trainer.state.batch_norm import BatchNormSync
from rover_kf.trainer.state.flatten import FlatState
from rover_kf.trainer.state.flatten_cache import live_dtensors
from rover_kf.trainer.step_counter import checked_step, step_counter_of
from rover_kf.trainer.step_reporter import LoaderProgress, StepReporter
from rover_kf.trainer.timers import StepTimer


class Checkpointer:
    """Saves a training process's state to memory and brings it back after whatever happened.

    Args:
        every: steps between two saves; the job's own (``checkpoint.every``) if not given.
        replicated: whether all ranks have the same parameters and optimizer state (DDP): one rank's
            copy then stands for all. DTensors (FSDP2, tensor parallel) are recognised by
            themselves. False (each rank has a state of its own) restores at an unchanged world
            size only.
        overlap: whether save() returns at once and parameters and optimizer state are copied while
            training computes, until the next optimizer step, which waits for the copy. Without it,
            a snapshot shows the moment of save(). With it, only optimizers may change parameters
            between save() and the next step. Torch counts other changes in place, and such a step
            is rejected. It does not count what is written through ``parameter.data``, a NumPy array
            or a captured step (``torch.cuda.CUDAGraph.replay()``); nor does it see parameters that
            are swapped (averaged weights, schedule-free optimizers): call finish() before these.
            Ranks of a world that hold different states copy at once all the same.
            ``"check"`` finds out whether a script may use it: each save copies at once, and a
            warning names what changed where an overlapped copy would still have been under way. It
            takes the memory of one more copy and a part of a core.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: ``every`` is below 1, ``overlap`` is another text, or a variable of the
            environment is wrong.
    """

    def __init__(
        self,
        *,
        every: int | None = None,
        replicated: bool = True,
        overlap: bool | Literal["check"] = False,
        settings: TrainerSettings | None = None,
    ) -> None:
        self._settings = settings or trainer_settings.read()
        self.every = self._settings.every if every is None else every
        if self.every < 1:
            raise errors.InputError(f"every is {every}; 1 or more is needed")
        if overlap not in (False, True, "check"):
            raise errors.InputError(f"overlap is {overlap!r}; allowed: False, True, 'check'")
        self._replicated = replicated
        home = self._settings.shared_dir
        self._sidecar = SidecarClient(home) if home else None
        self._phase, self._progress = Phase(), LoaderProgress()
        self._step_timer, self._clock = StepTimer(), MonotonicWallClock()
        self._batch_norm, self._buckets = BatchNormSync(self._settings.round), BucketTracker()
        told = (self._phase.current, self._progress.positions)
        self._reporter = (
            StepReporter(self._settings, self._sidecar, *told) if self._sidecar else None
        )
        self._restore_client = (
            RestoreClient(self._settings, self._sidecar) if self._sidecar else None
        )
        self._stager = Stager(
            self._settings,
            self._request_arena,
            self._on_sealed,
            replicated=replicated,
            overlap=overlap,
        )
        known = self._settings
        self._drain = Drain(home, known.resting, known.local_rank) if home else None
        self._last_step_at = time.monotonic()
        self._save_seconds = 0.0
        self._steps, self._session = step_counter_of(self._settings), object()
        self._inactive = InactiveNotice()
        self._open = True
        self.restored_from = "none"
        """Where restore found its state: ``memory``, ``peer``, ``storage`` or ``none``."""
        if self._reporter is not None:
            self._buckets.start()
            process_end.register(self.close)

    def restore(self, state: dict[str, object]) -> int:
        """Bring back the newest state that all ranks have in common; every rank must call it.

        Modules, optimizers and other objects with ``load_state_dict`` are loaded, tensors are
        overwritten in place, lists and dicts are filled, other plain values of the dict are
        replaced. Nothing refers to the checkpoint's memory afterwards.

        Args:
            state: what ``step`` and ``save`` are given, freshly built; what is saved after it is
                restored by a new process.

        Returns:
            The last finished step; 0 if there is nothing to restore.

        Raises:
            SidecarUnavailable: the process runs under rover-kf and its sidecar does not answer.
            IncompatibleState: the state does not fit, and is as it was. Only an object that loads
                in its own way (an own ``load_state_dict``, load hooks) can refuse after others
                have been loaded.
            CheckpointError: there is a state that this one cannot take, steps were saved since the
                process asked first, another Checkpointer of the process has restored, or another
                process has saved as this rank since the launcher started it.
        """
        if self._restore_client is None:
            self._inactive.warn_once()
            return 0
        self._steps.claim_restore(self._session)
        self._begin_restore()
        warn_detached_state_dicts(state)
        self._phase.watch_state(state)
        self._progress.watch_state(state)
        with gc_paused():
            reply = self._restore_into(state, self._restore_client)
        known = reply.snapshot_bytes if reply.step is not None else None
        self._stager.prepare(state, known)
        self._last_step_at = time.monotonic()
        self._steps.record_restored(reply)
        return self._steps.last

    def _restore_into(self, state: dict[str, object], client: RestoreClient) -> RestoreReply:
        shards = live_dtensors(state, replicated=self._replicated)
        threads = cpu_quota.threads_per_process(self._settings.local_world_size)
        with RestorePrefetch(self._settings, state, shards, threads) as anticipation:
            wanted = shards.requested_boxes()
            reply = client.request_slot(wanted, anticipation.prefetch)
            if reply.step is not None:
                anticipation.finish(reply)
                self._buckets.restore(anticipation.metadata, state)
                self.restored_from = reply.source
        return reply

    def peek(self) -> dict[str, object] | None:
        """Look at what restore will bring, before the state is built; every rank must call it.

        Returns:
            The saved dict with None for every tensor; None if there is nothing to restore.

        Raises:
            SidecarUnavailable: the process runs under rover-kf and its sidecar does not answer.
            CheckpointError: a rank does not ask, nothing fits this world, or steps were saved since
                the process asked first.
        """
        if self._restore_client is None:
            self._inactive.warn_once()
            return None
        self._begin_restore()
        found: dict[str, object] | None = self._restore_client.peek()
        return found

    def bring(self, boxes: tuple[RequestedBoxes, ...] = ()) -> RestoreReply:
        """Have the sidecar bring what restore loads, for who loads it by other means.

        Args:
            boxes: boxes of tensors that this rank holds; what is not named comes whole.

        Returns:
            The slot that holds it (``rover_kf.trainer.restore_client.open_slot``); its step is None
            if there is nothing to restore.

        Raises:
            SidecarUnavailable: the process runs under rover-kf and its sidecar does not answer.
            CheckpointError: a rank does not ask, nothing fits this world, or steps were saved since
                the process asked first.
        """
        if self._restore_client is None:
            self._inactive.warn_once()
            return RestoreReply(None, "none")
        self._begin_restore()
        reply = self._restore_client.request_slot(boxes)
        self._steps.record_restored(reply)
        self.restored_from = reply.source
        return reply

    def is_due(self, step: int) -> bool:
        """Whether ``step`` saves this one by its number."""
        return self._steps.is_due(step, self.every)

    def step(
        self,
        step: int,
        state: dict[str, object],
        *,
        samples: int = 0,
        wait_seconds: float = 0.0,
        total_steps: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Say that an optimizer step is finished; saves when it is due, and after the last one.

        Every rank calls it after each step. Steps may be told in strides; a save is due when a
        multiple of ``every`` is reached or passed.

        Args:
            step: its number, from 1 on; never below one that was saved or restored.
            state: as given to restore.
            samples: that this rank consumed in the step.
            wait_seconds: of the step, spent waiting for data by other means than the loaders of
                rover_kf in the state, which are asked.
            total_steps: that the whole training will take, if known; the last one is copied before
                this returns, so that the script may load other weights next. Without it the last
                step is saved where it is due only: call save after it, or what came since is lost.
            metrics: what was measured of this state; as for save, where the step is saved.

        Raises:
            InputError: a metric is no number, or the step is below 1 or goes back.
            SystemExit: the job is about to change its size: the step is saved and the process
                leaves with code 143, to go on from here in the new world.
            UnsupportedState: the state holds something that cannot be stored.
            ArenaTooSmall: the state does not fit; the message has the size to set.
            CheckpointError: the copy of an earlier step failed, or another process saves as this
                rank.
        """
        if self._reporter is None:
            self._inactive.warn_once()
            return
        step = checked_step(step, self._steps.last)
        self._stager.check()
        own_seconds = self._step_timer.end_step()
        draining = self._drain is not None and self._drain.is_due(step)
        due = self.is_due(step) or step == total_steps
        if due and self._replicated:
            self._batch_norm.broadcast(state)
        elif draining and self._replicated:
            self._batch_norm.broadcast_before_drain(state, step)
        last = draining or step == total_steps
        if draining or due:
            self._buckets.settle(state)
            self.save(step, state, metrics=metrics)
        if last:  # no training follows to copy beside, but often other weights: the best ones
            self.finish()
        self._steps.reported, now = step, time.monotonic()
        sample = StepSample(
            step=step,
            ended_at=self._clock.now(),
            seconds=now - self._last_step_at,
            samples=samples,
            wait_seconds=wait_seconds + self._progress.take_waited(),
            save_seconds=self._save_seconds + self._stager.take_waited(),
            rank_local_seconds=own_seconds,
        )
        self._last_step_at, self._save_seconds = now, 0.0
        self._phase.record_step(state, last=last)
        self._reporter.report_step(sample, total_steps)
        self._step_timer.begin_step(state)
        if self._drain is not None and draining:
            self.close()
            self._drain.leave()

    def save(
        self, step: int, state: dict[str, object], *, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save now; with overlap, the step is sealed in memory before the next one changes it.

        Args:
            step: its number, from 1 on; never below one that was saved or restored. Every rank
                saves it, not rank 0 alone: only such a step comes to storage.
            state: as given to restore.
            metrics: what was measured of this state, such as ``{"accuracy": 0.9}``; rank 0's go to
                the checkpoint on storage, where ``checkpoint.keep-best`` reads them. One that is
                not finite counts as not measured.

        Raises:
            InputError: a metric is no number, or the step is below 1 or goes back.
            UnsupportedState: the state holds something that cannot be stored.
            ArenaTooSmall: the state does not fit; the message has the size to set.
            SidecarUnavailable: the arena has to grow and the sidecar does not answer.
            CheckpointError: the copy of an earlier step failed; another process or another
                Checkpointer saves as this rank; or a signal handler calls it in the middle of a
                copy: set a flag there, and save after the step.
        """
        told = {**format_metrics.to_metadata(metrics), **self._buckets.metadata(state)}
        self._save_timed(step, lambda saved: self._stager.save(saved, state, told))
        if self._sidecar is not None:
            saved = self._steps.state_of(self._steps.last)
            notify(saved, state, self._sidecar)

    def save_parts(self, step: int, parts: FlatState) -> None:
        """Save tensors under names of the caller's, which name their boxes in ``rover.pieces``.

        Raises:
            InputError: the step is no whole number, below 1, or goes back.
            ArenaTooSmall: they do not fit; the message has the size to set.
            SidecarUnavailable: the arena has to grow and the sidecar does not answer.
            CheckpointError: the copy of an earlier step failed, or another process saves as this
                rank.
        """
        self._save_timed(step, lambda saved: self._stager.save_parts(saved, parts))

    def _save_timed(self, step: int, save: Callable[[State], None]) -> None:
        if self._reporter is None:
            self._inactive.warn_once()
            return
        if not self._open:
            raise errors.CheckpointError("this Checkpointer is closed; save before you close it")
        state = self._steps.next_state(checked_step(step, self._steps.last))
        self._steps.claim_save(self._session)
        begun = time.monotonic()
        self._save_seconds += self._stager.take_waited()
        with self._phase.saving():
            self._stager.finish()
            self._steps.writer_check.check_save()
            save(state)
        self._steps.record_saved(state)
        self._stager.take_waited()  # part of the time that is taken here
        self._save_seconds += time.monotonic() - begun

    def _on_sealed(self, seal: Seal, copy_seconds: float) -> None:
        """Tell the sidecar; called by whatever thread ended the copy."""
        assert self._reporter is not None  # noqa: S101 - no save gets here without one
        self._steps.writer_check.record_seal(seal)
        self._reporter.report_seal(seal, copy_seconds)

    def finish(self) -> None:
        """Wait for the copy of the last save: before something else than an optimizer changes it.

        Raises:
            CheckpointError: the copy failed; or a signal handler calls it in the middle of one.
        """
        self._stager.finish()

    def wait(self, step: int, level: str = "durable", timeout: float = 600.0) -> bool:
        """Wait until a step (or a newer one) is safe.

        Args:
            step: that was saved.
            level: ``memory``, ``replica`` (in another pod's memory as well) or ``durable`` (on
                storage, committed).
            timeout: seconds.

        Returns:
            Whether it is; the reason why not is logged.

        Raises:
            InputError: an unknown level.
            SidecarUnavailable: the sidecar does not answer.
        """
        if self._sidecar is None:
            self._inactive.warn_once()
            return False
        with self._phase.saving():
            self._stager.finish()
            state = self._steps.state_of(step)
            return self._sidecar.wait(state, level, timeout=timeout, patience=PATIENCE_SECONDS)

    def close(self) -> None:
        """Wait for the copy, report what is left, let go of the memory; safe to call twice.

        Raises:
            CheckpointError: the copy of the last saved step failed, or a signal handler calls it in
                the middle of a copy; it is still open then.
        """
        if not self._open:
            return
        self._stager.guard.check()
        self._open = False
        self._steps.record_closed()
        self._steps.release(self._session)
        self._phase.end()
        self._buckets.close()
        process_end.unregister(self.close)
        try:
            self._stager.close()
        finally:
            if self._reporter is not None:
                self._reporter.close()

    def __enter__(self) -> Checkpointer:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_late(self) -> bool:
        """Whether a training of this process is over already; it can have one alone."""
        return self._steps.is_finished

    def _begin_restore(self) -> None:
        """A restore is asked for: training follows.

        Raises:
            CheckpointError: steps were saved since the process asked first, or by another process.
        """
        self._steps.begin_restore()
        self._stager.finish()
        self._steps.writer_check.check()
        self._phase.begin()
        if self._reporter is not None:
            self._reporter.watch()

    def _request_arena(self, slot_bytes: int) -> ArenaReply:
        assert self._sidecar is not None  # noqa: S101 - no save gets here without one
        assert self._settings.shared_dir is not None  # noqa: S101 - nor without this
        rank = self._settings.local_rank
        arena = Arena(self._settings.shared_dir / names.ARENA_DIR / str(rank))
        have = arena.slot_bytes()
        if have >= slot_bytes:  # left by a process before this one; the sidecar would do nothing
            return ArenaReply(str(arena.directory), have)
        return self._sidecar.request_arena(rank, slot_bytes, patience=PATIENCE_SECONDS)
