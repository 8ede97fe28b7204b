# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Variables of a graph (tf.compat.v1), saved and restored through the chief's session.

A Saver would read files on the parameter servers, which would have to share a file system.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

from rover_kf import errors


class SessionState:
    """The variables of the chief's session; give it to TensorFlowCheckpointer.

    It replaces tf.train.Checkpoint, and creates operations in the session's graph.
    """

    def __init__(self, session: Any, variables: Mapping[str, Any]) -> None:
        tensorflow: Any = importlib.import_module("tensorflow")
        self._session, self._variables = session, dict(variables)
        self._placeholders: dict[str, Any] = {}
        self._assignments: dict[str, Any] = {}
        with session.graph.as_default():
            for name, variable in self._variables.items():
                with tensorflow.device(variable.device):
                    value = tensorflow.compat.v1.placeholder(variable.dtype, variable.shape)
                    self._placeholders[name] = value
                    self._assignments[name] = variable.assign(value, read_value=False)
            self._values = {name: one.read_value() for name, one in self._variables.items()}

    def write(self, path: str, options: Any = None) -> str:
        """Write what the variables are, one after the other; see tf.train.Checkpoint."""
        del options
        numpy: Any = importlib.import_module("numpy")
        values = {name: self._session.run(value) for name, value in self._values.items()}
        numpy.savez(_file(path), **values)
        return path

    def read(self, path: str, options: Any = None) -> SessionState:
        """Set the variables.

        Raises:
            CheckpointError: they are others.
        """
        del options
        numpy: Any = importlib.import_module("numpy")
        with numpy.load(_file(path), allow_pickle=False) as kept:
            found = {name: kept[name] for name in kept.files}
        own = {name: tuple(one.shape.as_list()) for name, one in self._variables.items()}
        saved = {name: tuple(value.shape) for name, value in found.items()}
        if saved != own:
            raise errors.IncompatibleState(
                f"the checkpoint has the variables {saved}, this graph has {own}. Start this one "
                "as another job"
            )
        for name, value in found.items():
            self._session.run(self._assignments[name], {self._placeholders[name]: value})
        return self

    def assert_existing_objects_matched(self) -> None:
        """As tf.train.Checkpoint's: ``read`` has looked at that."""


def _file(path: str) -> pathlib.Path:
    return pathlib.Path(f"{path}.npz")
