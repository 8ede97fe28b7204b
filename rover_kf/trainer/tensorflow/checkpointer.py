# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own in TensorFlow: tf.train.Checkpoint through memory.

::

    checkpointer = TensorFlowCheckpointer(tf.train.Checkpoint(model=model, optimizer=optimizer))
    step = checkpointer.restore()                     # 0: nothing was saved
    while step < last:
        step += 1
        ...
        checkpointer.step(step, total_steps=last)

TensorFlow writes its files into memory; they are taken into the arena from there, and everything
behind it (storage, peers) is the same as for other states. TensorFlow itself is imported when a
checkpointer is made.
"""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RejectedState, RestorableStepsReply, RestorableStepsRequest
from rover_kf.api.samples import StepSample
from rover_kf.system.steady_clock import MonotonicWallClock
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.directory import DirectoryCheckpointer
from rover_kf.trainer.drain import Drain
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.step_reporter import StepReporter
from rover_kf.trainer.tensorflow import tf_config
from rover_kf.trainer.tensorflow.chief_files import ChiefFiles
from rover_kf.trainer.tensorflow.part_folders import SaveFolderGc, SaveFolders
from rover_kf.trainer.tensorflow.scheduled_records import ScheduledRecords
from rover_kf.trainer.tensorflow.server_files import ServerFiles
from rover_kf.trainer.tensorflow.session_state import SessionState
from rover_kf.trainer.tensorflow.tf_config import TfConfig

_HELD_SECONDS = 60.0


def choose_writer(
    checkpoint: Any, config: TfConfig | None, settings: TrainerSettings
) -> ChiefFiles:
    """Return what writes the files, as the job requires; ``config`` None: one process alone.

    Raises:
        InputError: servers shall write, and there are none that could.
    """
    device = config.files_device if config is not None else None
    if settings.shards is None:
        return ChiefFiles(checkpoint, device)
    if config is None or not config.servers or isinstance(checkpoint, SessionState):
        raise errors.InputError(
            f"{names.ENV_CHECKPOINT_SHARDS} is {settings.shards}, and there is no "
            "parameter server of "
            f"ParameterServerStrategy that could write there; remove {names.PREFIX}"
            "checkpoint.shards from the job"
        )
    parts, home = SaveFolders(settings.shards, settings.round), settings.shared_dir
    sweep = (
        SaveFolderGc(parts, functools.partial(_restorable_steps, SidecarClient(home), settings))
        if home
        else None
    )
    return ServerFiles(checkpoint, device, parts, config.servers, sweep)


def _restorable_steps(sidecar: SidecarClient, settings: TrainerSettings) -> tuple[int, ...]:
    asked = RestorableStepsRequest(settings.local_rank)
    return sidecar.request(
        names.PATH_HELD, asked, RestorableStepsReply, timeout=_HELD_SECONDS
    ).steps


__all__ = ["ScheduledRecords", "TensorFlowCheckpointer"]

_log = logging.getLogger("rover_kf")

_RECORDS = "records"
"""The text with the place in the data."""


class TensorFlowCheckpointer:
    """Saves what a tf.train.Checkpoint tracks, and brings it back after whatever happened.

    Under ParameterServerStrategy the chief makes one; under MultiWorkerMirroredStrategy every
    worker does, and all save the same steps.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        every: steps between two saves; the job's own (``checkpoint.every``) if not given.
        settle: called before a save; waits for what is still computed. Under
            ParameterServerStrategy give it ``ClusterCoordinator.join``, if there are no records.
        records: that the chief hands out; their place is saved and restored with the state.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: TF_CONFIG or another variable is missing or wrong, or ``every`` is below 1; or
            the process is a server, which the chief's program drives.
    """

    def __init__(
        self,
        checkpoint: Any,
        *,
        every: int | None = None,
        settle: Callable[[], object] | None = None,
        records: ScheduledRecords | None = None,
        settings: TrainerSettings | None = None,
    ) -> None:
        known = settings or trainer_settings.read()
        self.every = known.every if every is None else every
        if self.every < 1:
            raise errors.InputError(f"every is {every}; 1 or more is needed")
        told = tf_config.read(os.environ, known.world_size)
        if told is not None and told.serves:
            raise errors.InputError(
                f"this process is {told.task} {told.index} beside parameter servers; it runs "
                "a tf.distribute.Server, and the chief saves"
            )
        self._state = choose_writer(checkpoint, told, known)
        self._settle, self._records = settle, records
        self._directory = DirectoryCheckpointer(settings=known)
        home = known.shared_dir
        self._files = home / names.RUN_DIR / f"files-{known.local_rank}" if home else None
        self._reporter = StepReporter(known, SidecarClient(home)) if home else None
        self._drain = Drain(home, known.resting, known.local_rank) if home else None
        self._clock, self._last_step_at = MonotonicWallClock(), time.monotonic()
        self._save_seconds = 0.0
        self._last_step = 0

    @property
    def restored_from(self) -> str:
        """Where restore found its state: ``memory``, ``peer``, ``storage`` or ``none``."""
        return self._directory.restored_from

    def restore(self) -> int:
        """Bring back the newest state that all ranks have in common; every rank must call it.

        Variables that are not made yet take their values when they are made, as after TensorFlow's
        own ``Checkpoint.read``.

        Returns:
            The last finished step; 0 if there is nothing to restore.

        Raises:
            SidecarUnavailable: the process runs under rover-kf and its sidecar does not answer.
            CheckpointError: there is a state that this one cannot take.
        """
        if self._files is None:
            return self._directory.restore(".")  # says that nothing is saved
        step = self._restore_newest(self._files)
        if step:
            _log.info("rover-kf: step %d is back from %s", step, self.restored_from)
            self._resume_records(step)
        self._last_step, self._last_step_at = step, time.monotonic()
        return step

    def kept(self, name: str) -> str | None:
        """Return a text that was saved with the state; None if there is none."""
        path = self._restore_dir / name
        return path.read_text() if self._files is not None and path.is_file() else None

    def is_due(self, step: int) -> bool:
        """Whether a step is saved by its number."""
        return step // self.every > self._last_step // self.every

    def step(
        self,
        step: int,
        *,
        samples: int = 0,
        total_steps: int | None = None,
        texts: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Say that a step is finished; saves when it is due, and after the last one.

        Steps may be told in strides; a save is due when a multiple of ``every`` is reached or
        passed.

        Args:
            step: its number, from 1 on.
            samples: that this rank consumed in the step.
            total_steps: that the whole training will take, if known.
            texts: as for save.
            metrics: what was measured of this state; as for DirectoryCheckpointer.save.

        Raises:
            SystemExit: the pod is about to end: the step is saved and the process leaves.
            ArenaTooSmall: the files do not fit; the message has the size to set.
            CheckpointError: TensorFlow's files cannot be written.
        """
        if self._reporter is None:
            return
        draining = self._drain is not None and self._drain.is_due(step)
        if draining or self.is_due(step) or step == total_steps:
            self.save(step, texts=texts, metrics=metrics)
        self._last_step, now = step, time.monotonic()
        sample = StepSample(
            step=step,
            ended_at=self._clock.now(),
            seconds=now - self._last_step_at,
            samples=samples,
            save_seconds=self._save_seconds,
        )
        self._last_step_at, self._save_seconds = now, 0.0
        self._reporter.report_step(sample, total_steps)
        if self._drain is not None and draining:
            self.close()
            self._drain.leave()

    def save(
        self,
        step: int,
        *,
        texts: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save now.

        Args:
            step: its number, from 1 on.
            texts: small files to be saved with the state, by name.
            metrics: as for DirectoryCheckpointer.save.

        Raises:
            ArenaTooSmall: the files do not fit; the message has the size to set.
            CheckpointError: TensorFlow's files cannot be written.
        """
        if self._files is None:
            return
        kept = dict(texts or {})
        if self._settle is not None:
            self._settle()
        if self._records is not None:
            self._records.settle()
            kept[_RECORDS] = self._records.to_text()
        begun, folder = time.monotonic(), self._files / "save"
        shutil.rmtree(self._files, ignore_errors=True)
        folder.mkdir(parents=True)
        self._state.write(folder, step)
        for name, text in kept.items():
            (folder / name).write_text(text)
        self._directory.save(step, folder, metrics=metrics)
        shutil.rmtree(folder)
        self._state.on_saved()
        self._save_seconds += time.monotonic() - begun

    def wait(self, step: int, level: str = "durable", timeout: float = 600.0) -> bool:
        """Wait until a step (or a newer one) is safe; see DirectoryCheckpointer.wait."""
        return self._directory.wait(step, level, timeout)

    def close(self) -> None:
        """Report what is left; safe to call twice."""
        if self._records is not None:
            self._records.close()
        if self._reporter is not None:
            self._reporter.close()
        self._state.close()
        self._directory.close()

    @property
    def _restore_dir(self) -> pathlib.Path:
        # Kept until the next save: variables that are made later read it.
        return (self._files or pathlib.Path()) / "begin"

    def _restore_newest(self, files: pathlib.Path) -> int:
        """The newest step that can be read; 0: nothing is saved."""
        refused: tuple[RejectedState, ...] = ()
        while True:
            shutil.rmtree(files, ignore_errors=True)
            step = self._directory.restore(self._restore_dir, refused=refused)
            if not step and refused:
                raise errors.CheckpointError(
                    f"no step of the job can be restored. Of the newest: {refused[0].reason}. "
                    f"Bring the files back, or begin anew with another {names.PREFIX}"
                    "checkpoint.path"
                )
            if not step:
                return 0
            try:
                self._state.read(self._restore_dir, step)
            except errors.CorruptSnapshot as damage:
                _log.warning("rover-kf: step %d is damaged, an older one is next: %s", step, damage)
                assert self._directory.restored_state is not None  # noqa: S101 - a step was restored
                refused += (RejectedState(self._directory.restored_state, str(damage)),)
            else:
                return step

    def _resume_records(self, step: int) -> None:
        """The records that the restored state was not trained on are the next."""
        if self._records is None:
            return
        text = self.kept(_RECORDS)
        if text is not None:
            self._records.load(text)
        else:
            _log.warning("rover-kf: step %d has no place in the data: epoch 0 begins anew", step)
