# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's files of a state, in the folder that is saved: one process writes all of them.

It is the chief beside parameter servers, else each process for itself.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import names

_log = logging.getLogger("rover_kf")

_SLOT = "/.OPTIMIZER_SLOT/"
"""In names of slots of tf.keras.optimizers.legacy, for variables that a partitioner has spread over
several parameter servers. A restore gives them initial values, without an error."""
FILE_PREFIX = "state"
"""What TensorFlow's files are called, in front of ``.index`` and ``.data-…``."""
SHARDS_FILE = "shards"
"""The text that stands in their place where the parameter servers have written (ServerFiles)."""


class ChiefFiles:
    """The files of a tf.train.Checkpoint that one process writes and reads.

    ``device`` is that process's; None: the one that each variable is in.
    """

    def __init__(self, checkpoint: Any, device: str | None) -> None:
        self.checkpoint, self._device = checkpoint, device
        self._has_checked_slots = False

    def write(self, folder: pathlib.Path, step: int) -> None:
        """Write the variables as they are now into the folder."""
        del step
        self.checkpoint.write(str(folder / FILE_PREFIX), options=self._options())
        self.warn_unrestored_slots(str(folder / FILE_PREFIX))

    def read(self, folder: pathlib.Path, step: int) -> None:
        """Set the variables; later variables take their values when they are created.

        Raises:
            CheckpointError: the files are another model's, or elsewhere.
        """
        if (folder / SHARDS_FILE).exists():
            raise errors.CheckpointError(
                f"step {step} was written by the parameter servers, in a folder of a volume that "
                f"they share; set {names.PREFIX}checkpoint.shards to that again"
            )
        with translate_mismatch(step):
            found = self.checkpoint.read(str(folder / FILE_PREFIX), options=self._options())
            found.assert_existing_objects_matched()

    def on_saved(self) -> None:
        """Do nothing: no files are elsewhere."""

    def close(self) -> None:
        """Do nothing: nothing is under way."""

    def warn_unrestored_slots(self, prefix: str) -> None:
        """Warn at the first save of slots that no restore brings back; see _SLOT."""
        if self._has_checked_slots:
            return
        self._has_checked_slots = True
        tensorflow: Any = importlib.import_module("tensorflow")
        if not isinstance(self.checkpoint, tensorflow.train.Checkpoint):
            return
        parts = tensorflow.train.TrackableView(self.checkpoint).descendants()
        spread = any(type(part).__name__ == "ShardedVariable" for part in parts)
        if spread and any(_SLOT in name for name, _ in tensorflow.train.list_variables(prefix)):
            _log.warning(
                "rover-kf: after a restore this optimizer begins with initial slots for variables "
                "that lie on several parameter servers: TensorFlow does not bring them back. Take "
                "one of tf.keras.optimizers, not of its legacy, and call build(variables) before "
                "restore()"
            )

    def _options(self) -> Any:
        tensorflow = importlib.import_module("tensorflow")
        return tensorflow.train.CheckpointOptions(experimental_io_device=self._device)


@contextlib.contextmanager
def translate_mismatch(step: int) -> Iterator[None]:
    """Turn TensorFlow's errors of another model's state into ours."""
    try:
        yield
    except (AssertionError, ValueError) as cause:
        raise errors.IncompatibleState(
            f"step {step} of the job is another model's or optimizer's: {cause}. Start this one as "
            "another job"
        ) from cause
