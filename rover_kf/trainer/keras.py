# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keras' Model.fit goes on where the job was, by one callback.

::

    from rover_kf.trainer.keras import flash_checkpoint

    model.fit(..., callbacks=[flash_checkpoint()])

tf-keras (Keras 2) goes on in the middle of an epoch, Keras 3 at the begin of the one it was in. The
place inside a data set is not restored: tf.data has none that a checkpoint of the model could hold.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.checkpoint.format import metrics
from rover_kf.trainer.tensorflow import TensorFlowCheckpointer

_POSITION_FILE = "place.json"


def flash_checkpoint(*, every: int | None = None) -> Any:
    """A callback for ``Model.fit``, of the Keras that the script uses.

    Args:
        every: batches between two saves; the job's own (``checkpoint.every``) if not given. The end
            of an epoch is saved, too.
    """
    keras = sys.modules.get("tf_keras") or importlib.import_module("tensorflow").keras
    made: Any = type("FlashCheckpoint", (_Hooks, keras.callbacks.Callback), {})
    return made(every)


class _InitialCounters:
    """Where tf-keras' loop asks for the epoch and batch to go on with."""

    def __init__(self, epoch: int, batch: int) -> None:
        self._epoch, self._batch = epoch, batch

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: object = None
    ) -> tuple[int, int]:
        """What its BackupAndRestore answers, too."""
        del mode
        if self._epoch < initial_epoch:
            return initial_epoch, 0
        if steps_per_epoch and self._batch >= steps_per_epoch:
            return self._epoch + 1, 0
        return self._epoch, self._batch


class _Hooks:
    """What the callback does; the class of Keras' own is put beside it.

    A batch is saved when the next one begins, so that the last one of an epoch is saved with the
    epoch's end behind it.
    """

    model: Any
    params: Any

    def __init__(self, every: int | None) -> None:
        super().__init__()
        # Under ParameterServerStrategy tf-keras takes no other callbacks that ask for batches; its
        # own __init__ says that this one is not.
        self._supports_tf_logs = True
        self._every = every
        self.checkpointer: TensorFlowCheckpointer | None = None
        """Can be waited for, and knows where a state came from; made when training begins."""
        self._step = self._reported = self._epoch = self._batch = 0

    def on_train_begin(self, logs: object = None) -> None:
        """Bring back what there is.

        Raises:
            CheckpointError: the state is another model's.
        """
        del logs
        tensorflow = importlib.import_module("tensorflow")
        with self.model.distribute_strategy.scope():
            # What is not built yet takes its values when it is made.
            if self.model.built and hasattr(self.model.optimizer, "build"):
                self.model.optimizer.build(self.model.trainable_variables)
            checkpoint = tensorflow.train.Checkpoint(model=self.model)
            # Batches that parameter servers' workers still compute.
            coordinator = getattr(self.model, "_cluster_coordinator", None)
            settle = coordinator.join if coordinator is not None else None
            self.checkpointer = TensorFlowCheckpointer(checkpoint, every=self._every, settle=settle)
            self._step = self._reported = self.checkpointer.restore()
        if self._step:
            self._resume(self.checkpointer.kept(_POSITION_FILE))

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Know where it is."""
        del logs
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Save what is behind, if it is due."""
        del logs
        self._report()
        self._batch = batch

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Count; an execution may be several batches."""
        del logs
        self._step += batch + 1 - self._batch
        self._batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """Save, with what was measured."""
        self._epoch, self._batch = epoch + 1, 0
        self._report(metrics.numeric_only(logs))

    def on_train_end(self, logs: object = None) -> None:
        """Report what is left."""
        del logs
        if self.checkpointer is not None:
            self.checkpointer.close()
        if hasattr(self.model, "_training_state"):
            self.model._training_state = None  # noqa: SLF001 - see _go_on

    def _report(self, measured: Mapping[str, float] | None = None) -> None:
        checkpointer = self.checkpointer
        if checkpointer is None or self._step == self._reported:
            return
        texts = {_POSITION_FILE: json.dumps([self._epoch, self._batch])}
        steps = (self.params or {}).get("steps")
        total = steps * self.params["epochs"] if steps else None
        if measured is not None and not checkpointer.is_due(self._step) and self._step != total:
            checkpointer.save(self._step, texts=texts, metrics=measured)
        checkpointer.step(self._step, total_steps=total, texts=texts, metrics=measured)
        self._reported = self._step

    def _resume(self, position: str | None) -> None:
        """Have the loop begin where the state was saved.

        Keras has no public way; these are what its own BackupAndRestore sets.
        """
        if position is None:
            raise errors.IncompatibleState(
                "the job's state has no place of Model.fit's; it was saved by another script. "
                "Start this one as another job"
            )
        epoch, batch = json.loads(position)
        if hasattr(self.model, "_training_state"):
            self.model._training_state = _InitialCounters(epoch, batch)  # noqa: SLF001 - tf-keras
        else:
            self.model._initial_epoch = epoch  # noqa: SLF001 - Keras 3
