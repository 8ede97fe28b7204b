# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tells of an optimizer whose slots TensorFlow saves and does not bring back.

It is one of tf.keras.optimizers.legacy, for variables that a partitioner has spread over several
parameter servers. No error tells it: the slots have their initial values after a restore.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

_log = logging.getLogger("rover_kf")

_SLOT = "/.OPTIMIZER_SLOT/"
"""In the names of such slots alone."""


class SlotAdvice:
    """Looks once in a process, at the first save."""

    def __init__(self) -> None:
        self._is_told = False

    def look(self, checkpoint: Any, written: str) -> None:
        """Warn, if there is one.

        Args:
            checkpoint: that was written.
            written: in front of its files' names.
        """
        if self._is_told:
            return
        self._is_told = True
        tensorflow: Any = importlib.import_module("tensorflow")
        if not isinstance(checkpoint, tensorflow.train.Checkpoint):
            return
        parts = tensorflow.train.TrackableView(checkpoint).descendants()
        spread = any(type(part).__name__ == "ShardedVariable" for part in parts)
        if spread and any(_SLOT in name for name, _ in tensorflow.train.list_variables(written)):
            _log.warning(
                "rover-kf: after a restore this optimizer begins with initial slots for variables "
                "that lie on several parameter servers: TensorFlow does not bring them back. Take "
                "one of tf.keras.optimizers, not of its legacy, and call build(variables) before "
                "restore()"
            )
