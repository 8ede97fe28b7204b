# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's files of a state, in the folder that is saved: one process writes all of them.

It is the chief beside parameter servers, else each process for itself.
"""

from __future__ import annotations

import importlib
import logging
import pathlib
from typing import Any

from rover_kf import errors
from rover_kf.api import names

# It is one of tf.keras.optimizers.legacy, for variables that a partitioner has spread over several
# parameter servers. No error tells it: the slots have their initial values after a restore.
_log = logging.getLogger("rover_kf")


_SLOT = "/.OPTIMIZER_SLOT/"
"""In the names of such slots alone."""


class UnrestoredSlotWarning:
    """A warning of optimizer slots that no restore brings back, at the first save."""

    def __init__(self) -> None:
        self._has_checked = False

    def check(self, checkpoint: Any, prefix: str) -> None:
        """Warn if the checkpoint, written with this file prefix, has such slots."""
        if self._has_checked:
            return
        self._has_checked = True
        tensorflow: Any = importlib.import_module("tensorflow")
        if not isinstance(checkpoint, tensorflow.train.Checkpoint):
            return
        parts = tensorflow.train.TrackableView(checkpoint).descendants()
        spread = any(type(part).__name__ == "ShardedVariable" for part in parts)
        if spread and any(_SLOT in name for name, _ in tensorflow.train.list_variables(prefix)):
            _log.warning(
                "rover-kf: after a restore this optimizer begins with initial slots for variables "
                "that lie on several parameter servers: TensorFlow does not bring them back. Take "
                "one of tf.keras.optimizers, not of its legacy, and call build(variables) before "
                "restore()"
            )


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
        self.slot_warning = UnrestoredSlotWarning()

    def write(self, folder: pathlib.Path, step: int) -> None:
        """Write the variables as they are now into the folder."""
        del step
        self.checkpoint.write(str(folder / FILE_PREFIX), options=self._options())
        self.slot_warning.check(self.checkpoint, str(folder / FILE_PREFIX))

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

    def _options(self) -> Any:
        tensorflow = importlib.import_module("tensorflow")
        return tensorflow.train.CheckpointOptions(experimental_io_device=self._device)


class translate_mismatch:  # noqa: N801 - a context manager, used as a statement
    """A context that turns TensorFlow's errors of another model's state into ours."""

    def __init__(self, step: int) -> None:
        self._step = step

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        """End.

        Raises:
            CheckpointError: the state does not fit.
        """
        if isinstance(cause, (AssertionError, ValueError)):
            raise errors.IncompatibleState(
                f"step {self._step} of the job is another model's or optimizer's: {cause}. Start "
                "this one as another job"
            ) from cause
