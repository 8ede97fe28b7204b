# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every byte of a checkpoint against its checksum; no file that is damaged hides another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import Folder, RankFile
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.checkpoint_tools.listing import UNFINISHED, check_own, is_gone


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file."""

    name: str
    length: int
    """Bytes that it should have; 0 for the manifest."""
    problem: str = ""
    """Empty: it is what was written."""
    unread: bool = False
    """The problem is that it could not be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """One checkpoint."""

    name: str
    step: int
    generation: int
    files: tuple[CheckedFile, ...]
    """The manifest first."""
    unfinished: bool = False
    """It has no manifest, so that it is no checkpoint."""

    @property
    def unread(self) -> bool:
        """Whether nothing is known to be wrong, but that it could not be read."""
        return not self.whole and all(file.unread for file in self.files if file.problem)

    @property
    def whole(self) -> bool:
        """Whether it is a checkpoint and every byte is as it was written."""
        return not any(file.problem for file in self.files)


def check(storage: Storage, folder: Folder) -> Checked:
    """Read a checkpoint to its last byte; one that is removed meanwhile is no checkpoint.

    Raises:
        StorageFailed: the storage as a whole cannot be read.
    """
    checked = Checked(folder.name, folder.step, folder.generation, ())
    try:
        sizes = storage.sizes(folder)
    except errors.StorageFailed as error:
        return _unread(checked, error)
    try:
        if manifest.NAME in sizes:
            return dataclasses.replace(checked, files=tuple(_files(storage, folder, sizes)))
    except errors.StorageFailed as error:
        if not is_gone(storage, folder):
            return _unread(checked, error)
    file = CheckedFile(manifest.NAME, 0, f"{folder.manifest_location}: {UNFINISHED}")
    return dataclasses.replace(checked, files=(file,), unfinished=True)


def _unread(checked: Checked, error: errors.StorageFailed) -> Checked:
    check_own(error)
    file = CheckedFile(manifest.NAME, 0, str(error), unread=True)
    return dataclasses.replace(checked, files=(file,))


def _files(storage: Storage, folder: Folder, sizes: Mapping[str, int]) -> Iterator[CheckedFile]:
    try:
        content = storage.read_manifest(folder)
    except errors.TornSnapshot as error:
        yield CheckedFile(manifest.NAME, 0, str(error))
        return
    yield CheckedFile(manifest.NAME, 0)
    for file in content.files:
        yield _check_file(storage, folder, file, sizes)


def _check_file(
    storage: Storage, folder: Folder, file: RankFile, sizes: Mapping[str, int]
) -> CheckedFile:
    try:
        verification.check_size(folder, file, sizes.get(file.name))
        for _ in verification.verified(storage, folder, file):
            pass
    except errors.TornSnapshot as error:
        return CheckedFile(file.name, file.length, str(error))
    except errors.StorageFailed as error:
        check_own(error)
        if is_gone(storage, folder):
            raise
        return CheckedFile(file.name, file.length, str(error), unread=True)
    return CheckedFile(file.name, file.length)
