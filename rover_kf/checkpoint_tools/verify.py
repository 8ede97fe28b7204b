# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every byte of a checkpoint against its checksum; no file that is damaged hides another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, RankFile
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.checkpoint_tools.listing import UNFINISHED, require_isolated_error, was_removed


@dataclasses.dataclass(frozen=True, slots=True)
class FileVerification:
    """One file."""

    name: str
    length: int
    """Bytes that it should have; 0 for the manifest."""
    problem: str = ""
    """Empty: it is what was written."""
    unreadable: bool = False
    """The problem is that it could not be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointVerification:
    """One checkpoint."""

    name: str
    step: int
    round: int
    files: tuple[FileVerification, ...]
    """The manifest first."""
    unfinished: bool = False
    """It has no manifest, so that it is no checkpoint."""

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing is known to be wrong, but that it could not be read."""
        return not self.is_intact and all(file.unreadable for file in self.files if file.problem)

    @property
    def is_intact(self) -> bool:
        """Whether it is a checkpoint and every byte is as it was written."""
        return not any(file.problem for file in self.files)


def verify_checkpoint(storage: Storage, folder: CheckpointFolder) -> CheckpointVerification:
    """Read a checkpoint to its last byte; one that is removed meanwhile is no checkpoint.

    Raises:
        StorageError: the storage as a whole cannot be read.
    """
    checked = CheckpointVerification(folder.name, folder.step, folder.state.round.number, ())
    try:
        sizes = storage.sizes(folder)
    except errors.StorageError as error:
        return _mark_unreadable(checked, error)
    try:
        if manifest.NAME in sizes:
            return dataclasses.replace(checked, files=tuple(_verify_files(storage, folder, sizes)))
    except errors.StorageError as error:
        if not was_removed(storage, folder):
            return _mark_unreadable(checked, error)
    file = FileVerification(manifest.NAME, 0, f"{folder.manifest_location}: {UNFINISHED}")
    return dataclasses.replace(checked, files=(file,), unfinished=True)


def _mark_unreadable(
    checked: CheckpointVerification, error: errors.StorageError
) -> CheckpointVerification:
    require_isolated_error(error)
    file = FileVerification(manifest.NAME, 0, str(error), unreadable=True)
    return dataclasses.replace(checked, files=(file,))


def _verify_files(
    storage: Storage, folder: CheckpointFolder, sizes: Mapping[str, int]
) -> Iterator[FileVerification]:
    try:
        content = storage.read_manifest(folder)
    except errors.CorruptSnapshot as error:
        unknown = isinstance(error, errors.UnknownFormat)
        yield FileVerification(manifest.NAME, 0, str(error), unreadable=unknown)
        return
    yield FileVerification(manifest.NAME, 0)
    for file in content.files:
        yield _verify_file(storage, folder, file, sizes)


def _verify_file(
    storage: Storage, folder: CheckpointFolder, file: RankFile, sizes: Mapping[str, int]
) -> FileVerification:
    try:
        verification.check_size(folder, file, sizes.get(file.name))
        for _ in verification.read_verified(storage, folder, file):
            pass
    except errors.CorruptSnapshot as error:
        return FileVerification(file.name, file.length, str(error))
    except errors.StorageError as error:
        require_isolated_error(error)
        if was_removed(storage, folder):
            raise
        return FileVerification(file.name, file.length, str(error), unreadable=True)
    return FileVerification(file.name, file.length)
