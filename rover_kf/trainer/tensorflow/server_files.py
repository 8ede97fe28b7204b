# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's files of a state where each parameter server writes its own variables.

Servers and chief share their volume. The chief's own save names them, so a step is complete or
absent.
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
from rover_kf.trainer.tensorflow.chief_files import (
    FILE_PREFIX,
    SHARDS_FILE,
    ChiefFiles,
    translate_mismatch,
)
from rover_kf.trainer.tensorflow.part_folders import SaveFolder, SaveFolderGc, SaveFolders

_LOST = ("UnavailableError", "AbortedError", "CancelledError")
"""TensorFlow's words for another process that is lost."""
_DAMAGED = ("DataLossError", "OutOfRangeError", "NotFoundError", "OpError")
"""Its words for files that are not what they were; the last one is said by the chief's reader."""
_FILES = "TensorBundle"
"""Its name for a state's files."""
_TOKEN = "token"  # noqa: S105 - a file's name


class ServerFiles(ChiefFiles):
    """The files of a tf.train.Checkpoint whose variables each parameter server writes."""

    def __init__(
        self,
        checkpoint: Any,
        device: str | None,
        folders: SaveFolders,
        servers: int,
        collector: SaveFolderGc | None = None,
    ) -> None:
        super().__init__(checkpoint, device)
        self._folders, self._servers = folders, servers
        self._collector = collector
        self._is_shared = False

    def write(self, folder: pathlib.Path, step: int) -> None:
        """Let the servers write the variables; durable when it returns.

        ``folder`` gets the text that names what they wrote.

        Raises:
            CheckpointError: a server does not see the volume, or it refused.
        """
        self._check_shared()
        made = self._folders.create(step)
        with _translate_write_errors(made):
            self.checkpoint.write(str(made / FILE_PREFIX))
        self.warn_unrestored_slots(str(made / FILE_PREFIX))
        (folder / SHARDS_FILE).write_text(self._folders.sync(made).to_text())

    def read(self, folder: pathlib.Path, step: int) -> None:
        """Let each server set its variables; later ones take their values at creation.

        Raises:
            CorruptSnapshot: what the servers wrote is gone or damaged.
            CheckpointError: a server does not see the volume, or it is another model's state.
        """
        if not (folder / SHARDS_FILE).exists():
            super().read(folder, step)  # saved through the chief, before servers wrote themselves
            return
        part = SaveFolder.from_text((folder / SHARDS_FILE).read_text())
        self._check_shared()
        written = self._folders.verify(part)
        with translate_mismatch(step), _translate_read_errors(written):
            found = self.checkpoint.read(str(written / FILE_PREFIX))
            found.assert_existing_objects_matched()

    def on_saved(self) -> None:
        """Start the removal of older saves."""
        if self._collector is not None:
            self._collector.start()

    def close(self) -> None:
        """Wait for the removal, for a while."""
        if self._collector is not None:
            self._collector.wait()

    def _check_shared(self) -> None:
        """Make sure once that all servers write to and read from the folder that is here.

        Raises:
            CheckpointError: one does not; the message names it.
        """
        if self._is_shared:
            return
        tensorflow: Any = importlib.import_module("tensorflow")
        made, said = self._folders.create(0), secrets.token_hex(16)
        try:
            (made / _TOKEN).write_text(said)
            wrong = [
                f"ps {server}: {why}"
                for server in range(self._servers)
                if (why := _probe_server(tensorflow, made, said, server))
            ]
        finally:
            self._folders.remove(made)
        if wrong:
            raise errors.CheckpointError(
                f"{made.parent} is not shared by the chief and all parameter servers. "
                f"{'; '.join(wrong)}. Mount one volume there in the templates of Chief and PS, "
                f"which both may write to ({names.PREFIX}checkpoint.shards)"
            )
        self._is_shared = True


def _probe_server(tensorflow: Any, folder: pathlib.Path, token: str, server: int) -> str:
    """A server copies the token; what is wrong with the copy, empty if nothing is."""
    copy = folder / f"ps-{server}"
    try:
        with tensorflow.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
            # An outcome that is looked at: else errors would come with a later operation.
            seen = tensorflow.io.read_file(str(folder / _TOKEN)).numpy().decode()
            if seen == token:
                tensorflow.io.write_file(str(copy), token)
                seen = tensorflow.io.read_file(str(copy)).numpy().decode()
    except tensorflow.errors.OpError as error:
        if type(error).__name__ in _LOST:
            raise
        return _error_text(error)
    if seen != token:
        return "it reads something else there"
    if not copy.is_file() or copy.read_text() != token:
        return "what it writes there is not seen here"
    return ""


@contextlib.contextmanager
def _translate_write_errors(folder: pathlib.Path) -> Iterator[None]:
    """Around a write: what TensorFlow says of the volume, in our words."""
    tensorflow: Any = importlib.import_module("tensorflow")
    try:
        yield
    except tensorflow.errors.OpError as error:
        if type(error).__name__ in _LOST:
            raise
        raise errors.CheckpointError(
            f"a parameter server cannot write to {folder}: {_error_text(error)}; see the volume of "
            f"{names.PREFIX}checkpoint.shards"
        ) from error


@contextlib.contextmanager
def _translate_read_errors(folder: pathlib.Path) -> Iterator[None]:
    """Around a read: what TensorFlow says of damaged files, in our words."""
    tensorflow: Any = importlib.import_module("tensorflow")
    try:
        yield
    except tensorflow.errors.OpError as error:
        if type(error).__name__ not in _DAMAGED:
            raise
        raise errors.CorruptSnapshot(f"{folder} is damaged: {_error_text(error)}") from error


def _error_text(error: Any) -> str:
    """What it says of the files: of several lines the one that names them."""
    lines = str(error.message).strip().splitlines() or [""]
    return next((line.strip() for line in lines if _FILES in line), lines[0])
