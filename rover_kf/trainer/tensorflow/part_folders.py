# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders that parameter servers write to, one for each save.

A folder counts only if a saved state names it, with its files and their sizes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import re
import secrets
import shutil
import threading
import zlib
from collections.abc import Callable, Collection, Mapping

from rover_kf import errors

_log = logging.getLogger("rover_kf")
_END_SECONDS = 5.0


class SaveFolderGc:
    """A thread of the chief that removes folders of steps that nothing can restore.

    A folder goes when two collections in a row, a save apart, find its step in no memory, no copy
    and no checkpoint on storage. Where one of these does not answer, nothing goes.
    """

    def __init__(
        self, folders: SaveFolders, restorable_steps: Callable[[], Collection[int]]
    ) -> None:
        self._folders, self._restorable_steps = folders, restorable_steps
        self._candidates: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Collect in a thread after a save; do nothing while one collects."""
        if self._thread is None or not self._thread.is_alive():
            # A daemon: an interpreter that ends must not wait for a slow volume.
            self._thread = threading.Thread(target=self.collect, name="rover-sweep", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait for the thread, for a while."""
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def collect(self) -> None:
        """Remove what this collection and the one before it found."""
        try:
            folders = self._folders.list_folders()
            found = self._folders.unreferenced(folders, self._restorable_steps())
        except (errors.RoverError, OSError) as error:
            self._candidates = set()
            _log.debug("rover-kf: what servers wrote of older steps stays: %s", error)
            return
        for folder in folders:
            if folder.name in found & self._candidates:
                self._folders.remove(folder)
        self._candidates = found


_FOLDER = re.compile(r"step-([0-9]{12,18})-([0-9]{1,18})\.[0-9a-f]{8}")
_INDEX = ".index"
"""At the end of the name of the file that lists the others' tensors, and has their checksums."""


@dataclasses.dataclass(frozen=True, slots=True)
class SaveFolder:
    """What servers have written of one state."""

    folder: str
    files: Mapping[str, int]
    """Sizes, by name."""
    index: int
    """CRC-32 of the files that list tensors; they have the checksums of the others."""

    def to_text(self) -> str:
        """As it stands in a saved state."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> SaveFolder:
        """Read ``to_text``.

        Raises:
            CorruptSnapshot: it is something else.
        """
        try:
            told = json.loads(text)
            files = {str(name): int(size) for name, size in told["files"].items()}
            found = cls(str(told["folder"]), files, int(told["index"]))
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise errors.CorruptSnapshot(f"{text[:200]!r} names no servers' files") from cause
        for name in (found.folder, *files):
            if "/" in name or name in ("", ".", ".."):
                raise errors.CorruptSnapshot(f"{name!r} leads out of the folder of servers' files")
        return found


class SaveFolders:
    """The save folders of one job below its folder on the shared volume."""

    def __init__(self, root: pathlib.Path, round_: int) -> None:
        self._root, self._round = root, round_

    def create(self, step: int) -> pathlib.Path:
        """Create a folder with a name that no other save ever has.

        Raises:
            CheckpointError: it cannot be made.
        """
        made = self._root / f"step-{step:012d}-{self._round}.{secrets.token_hex(4)}"
        try:
            made.mkdir(parents=True)
        except OSError as cause:
            raise errors.CheckpointError(f"{made} cannot be made: {cause}") from cause
        return made

    def sync(self, folder: pathlib.Path) -> SaveFolder:
        """Flush a folder to the storage; return what it holds.

        TensorFlow does not. Where servers write by other machines the file system has to show what
        they have closed, as NFS does.

        Raises:
            CheckpointError: the storage refused.
        """
        try:
            files = sorted(path for path in folder.iterdir() if path.is_file())
            for path in (*files, folder, folder.parent):
                _sync(path)
            sizes = {path.name: path.stat().st_size for path in files}
            return SaveFolder(folder.name, sizes, _index(folder, sizes))
        except OSError as cause:
            raise errors.CheckpointError(f"{folder} is not safe: {cause}") from cause

    def verify(self, save_folder: SaveFolder) -> pathlib.Path:
        """Check sizes and index of a folder; return its path.

        Raises:
            CorruptSnapshot: it is not all there.
        """
        folder = self._root / save_folder.folder
        try:
            for name, size in save_folder.files.items():
                there = (folder / name).stat().st_size
                if there != size:
                    raise errors.CorruptSnapshot(
                        f"{folder / name} has {there} bytes where {size} were written"
                    )
            if _index(folder, save_folder.files) != save_folder.index:
                raise errors.CorruptSnapshot(f"the index in {folder} differs from its checksum")
        except OSError as cause:
            raise errors.CorruptSnapshot(f"{folder} is not whole: {cause}") from cause
        return folder

    def remove(self, folder: pathlib.Path) -> None:
        """Remove a folder; a later collection retries what cannot be removed now."""
        shutil.rmtree(folder, ignore_errors=True)

    def unreferenced(
        self, folders: Collection[pathlib.Path], restorable_steps: Collection[int]
    ) -> set[str]:
        """Return the names of folders that no saved state can name.

        ``folders`` were listed before ``restorable_steps`` were requested; a save under way is in
        neither. No folder is of a newer round: this chief's program would be one that is given up.
        Of a restorable step it is what a killed save has left unfinished.
        """
        found = set()
        for path in folders:
            if match := _FOLDER.fullmatch(path.name):
                step, number = int(match[1]), int(match[2])
                abandoned = number < self._round and not any(path.glob(f"*{_INDEX}"))
                if number <= self._round and (step not in restorable_steps or abandoned):
                    found.add(path.name)
        return found

    def list_folders(self) -> list[pathlib.Path]:
        """List all folders of the job.

        Raises:
            OSError: they cannot be listed.
        """
        return sorted(self._root.iterdir()) if self._root.is_dir() else []


def _index(folder: pathlib.Path, files: Mapping[str, int]) -> int:
    found = 0
    for name in sorted(files):
        if name.endswith(_INDEX):
            found = zlib.crc32((folder / name).read_bytes(), found)
    return found


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
