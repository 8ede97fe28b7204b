# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's files of a state where each parameter server writes its own variables.

They lie on a volume that the servers and the chief share. What the chief saves itself names them,
so that a step exists only when all of them do.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.trainer.tensorflow.chief_files import NAME, PARTS, ChiefFiles, matched
from rover_kf.trainer.tensorflow.part_folders import Part, Parts, PartSweep

_LOST = ("UnavailableError", "AbortedError", "CancelledError")
"""TensorFlow's words for another process that is lost."""
_DAMAGED = ("DataLossError", "OutOfRangeError", "NotFoundError", "OpError")
"""Its words for files that are not what they were; the last one is said by the chief's reader."""
_FILES = "TensorBundle"
"""Its name for a state's files."""
_TOKEN = "token"  # noqa: S105 - a file's name


class ServerFiles:
    """Of one tf.train.Checkpoint under ParameterServerStrategy.

    Args:
        through: reads what was saved through the chief, before servers wrote themselves.
        parts: the folders of the job.
        servers: how many there are.
        sweep: removes what they wrote before.
    """

    def __init__(
        self, through: ChiefFiles, parts: Parts, servers: int, sweep: PartSweep | None = None
    ) -> None:
        self._through, self._parts, self._servers = through, parts, servers
        self._sweep = sweep
        self._is_shared = False

    def write(self, folder: pathlib.Path, step: int) -> None:
        """Have the servers write the variables as they are now; safe when it returns.

        Args:
            folder: to put the text into that names what they wrote.
            step: of the state.

        Raises:
            CheckpointError: a server does not see the volume, or it refused.
        """
        self._look()
        made = self._parts.make(step)
        with _written(made):
            self._through.checkpoint.write(str(made / NAME))
        self._through.advice.look(self._through.checkpoint, str(made / NAME))
        (folder / PARTS).write_text(self._parts.settle(made).to_text())

    def read(self, folder: pathlib.Path, step: int) -> None:
        """Have each server set its variables; those that are made later take their values then.

        Args:
            folder: as it was saved.
            step: of the state.

        Raises:
            TornSnapshot: what the servers wrote is gone or damaged.
            CheckpointError: a server does not see the volume, or it is another model's state.
        """
        if not (folder / PARTS).exists():
            self._through.read(folder, step)
            return
        part = Part.from_text((folder / PARTS).read_text())
        self._look()
        written = self._parts.find(part)
        with matched(step), _read(written):
            found = self._through.checkpoint.read(str(written / NAME))
            found.assert_existing_objects_matched()

    def saved(self) -> None:
        """The state that names what was written is saved: what is older may go."""
        if self._sweep is not None:
            self._sweep.begin()

    def close(self) -> None:
        """Wait for what is being removed, for a while."""
        if self._sweep is not None:
            self._sweep.end()

    def _look(self) -> None:
        """Make sure once that all servers write to and read from the folder that is here.

        Raises:
            CheckpointError: one does not; the message names it.
        """
        if self._is_shared:
            return
        tensorflow: Any = importlib.import_module("tensorflow")
        made, said = self._parts.make(0), secrets.token_hex(16)
        try:
            (made / _TOKEN).write_text(said)
            wrong = [
                f"ps {server}: {why}"
                for server in range(self._servers)
                if (why := _answer(tensorflow, made, said, server))
            ]
        finally:
            self._parts.remove(made)
        if wrong:
            raise errors.CheckpointError(
                f"{made.parent} is not shared by the chief and all parameter servers. "
                f"{'; '.join(wrong)}. Mount one volume there in the templates of Chief and PS, "
                f"which both may write to ({names.PREFIX}checkpoint.shards)"
            )
        self._is_shared = True


def _answer(tensorflow: Any, folder: pathlib.Path, said: str, server: int) -> str:
    """A server copies the token; what is wrong with the copy, empty if nothing is."""
    copy = folder / f"ps-{server}"
    try:
        with tensorflow.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
            # An outcome that is looked at: else errors would come with a later operation.
            seen = tensorflow.io.read_file(str(folder / _TOKEN)).numpy().decode()
            if seen == said:
                tensorflow.io.write_file(str(copy), said)
                seen = tensorflow.io.read_file(str(copy)).numpy().decode()
    except tensorflow.errors.OpError as error:
        if type(error).__name__ in _LOST:
            raise
        return _said(error)
    if seen != said:
        return "it reads something else there"
    if not copy.is_file() or copy.read_text() != said:
        return "what it writes there is not seen here"
    return ""


@contextlib.contextmanager
def _written(folder: pathlib.Path) -> Iterator[None]:
    """Around a write: what TensorFlow says of the volume, in our words."""
    tensorflow: Any = importlib.import_module("tensorflow")
    try:
        yield
    except tensorflow.errors.OpError as error:
        if type(error).__name__ in _LOST:
            raise
        raise errors.CheckpointError(
            f"a parameter server cannot write to {folder}: {_said(error)}; see the volume of "
            f"{names.PREFIX}checkpoint.shards"
        ) from error


@contextlib.contextmanager
def _read(folder: pathlib.Path) -> Iterator[None]:
    """Around a read: what TensorFlow says of damaged files, in our words."""
    tensorflow: Any = importlib.import_module("tensorflow")
    try:
        yield
    except tensorflow.errors.OpError as error:
        if type(error).__name__ not in _DAMAGED:
            raise
        raise errors.TornSnapshot(f"{folder} is damaged: {_said(error)}") from error


def _said(error: Any) -> str:
    """What it says of the files: of several lines the one that names them."""
    lines = str(error.message).strip().splitlines() or [""]
    return next((line.strip() for line in lines if _FILES in line), lines[0])
