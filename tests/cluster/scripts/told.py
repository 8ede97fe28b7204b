# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs wide_and_deep.py and tells each step; where rover-kf is not, with TensorFlow's own files.

``told.py SCRIPT …``: the script's three lines stay. Without rover-kf they are answered by
tf.train.CheckpointManager, which saves at the same steps to shared storage, through the chief, and
by rows in an order that each program begins anew. At a SIGUSR2 it tells where its threads are.
"""

import faulthandler
import importlib.util
import runpy
import signal
import sys
import types

PLACE, EVERY = "/checkpoints/stock", 10


def tell(step: int) -> None:
    """For whoever reads the log."""
    print(f"done {step}", flush=True)


class Rows:
    """What a user without rover-kf has: one epoch after the other, from the first one on."""

    def __init__(self, coordinator, samples, *, batch, epochs):
        import tensorflow as tf  # noqa: PLC0415 - only here, and only by the chief

        self.coordinator, self._function = coordinator, None
        numbers = tf.data.Dataset.range(samples).shuffle(samples).batch(batch)
        self._batches = iter(numbers.repeat(epochs))

    def schedule(self, function):
        """Hand out the next ones."""
        import tensorflow as tf  # noqa: PLC0415 - only here, and only by the chief

        if self._function is None:
            signature = [tf.TensorSpec([None], tf.int64)]
            self._function = tf.function(function, input_signature=signature)
        numbers = next(self._batches, None)
        if numbers is None:
            return 0
        self.coordinator.schedule(self._function, args=(numbers,))
        return len(numbers)


class Files:
    """What a user without rover-kf has: the newest files of shared storage."""

    def __init__(self, checkpoint, *, records):
        import tensorflow as tf  # noqa: PLC0415 - only here, and only by the chief

        self.restored_from = "none"
        self._settle = records.coordinator.join
        device = "/job:chief/replica:0/task:0/device:CPU:0"
        self._options = tf.train.CheckpointOptions(experimental_io_device=device)
        self._manager = tf.train.CheckpointManager(checkpoint, PLACE, max_to_keep=2)

    def restore(self) -> int:
        """Bring back the newest; its step."""
        newest = self._manager.latest_checkpoint
        if newest is None:
            return 0
        self._manager.checkpoint.restore(newest, options=self._options)
        self.restored_from = "files"
        return int(newest.rpartition("-")[2])

    def step(self, step, *, samples, total_steps):
        """Save when it is due."""
        del samples
        if step % EVERY == 0 or step == total_steps:
            self._settle()
            self._manager.save(checkpoint_number=step, options=self._options)
            print(f"saved {step}", flush=True)
        tell(step)

    def close(self) -> None:
        """Everything is written."""


def with_rover() -> None:
    """Have each step told, too."""
    from rover_kf.trainer.tensorflow import TensorFlowCheckpointer  # noqa: PLC0415 - if it is there

    saves = TensorFlowCheckpointer.step

    def step(self, number, **told):
        saves(self, number, **told)
        tell(number)

    TensorFlowCheckpointer.step = step


def without() -> None:
    """Answer the import of the script's lines."""
    module = types.ModuleType("rover_kf.trainer.tensorflow")
    module.TensorFlowCheckpointer, module.ScheduledRecords = Files, Rows
    for name in ("rover_kf", "rover_kf.trainer"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module


faulthandler.register(signal.SIGUSR2)
with_rover() if importlib.util.find_spec("rover_kf") else without()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
