# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What stands in the folders of a storage, and what is wrong with it.

Listing reads no file whole; verifying compares every byte with its checksum. No file that is
damaged hides another.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage


def select_folders(
    folders: Sequence[CheckpointFolder], words: Sequence[str]
) -> tuple[CheckpointFolder, ...]:
    """The folders that words name.

    Args:
        folders: of the job.
        words: a step, of whatever round, a folder's name, or its location.

    Raises:
        InputError: a word names none of them.
    """
    found: dict[CheckpointFolder, None] = {}
    for word in words:
        step = int(word) if word.isdecimal() else None
        same = [f for f in folders if word in (f.name, f.location) or f.step == step]
        if not same:
            there = abbreviate([folder.name for folder in folders])
            raise errors.InputError(f"there is no checkpoint {word!r}; there are {there}")
        found.update(dict.fromkeys(same))
    return tuple(found)


def deletion_block(
    checkpoints: Sequence[CheckpointInfo],
    to_delete: Collection[str],
    is_whole: Callable[[str], bool],
) -> str:
    """Why these should not go without force; empty: they may.

    Args:
        checkpoints: everything of the job, oldest first.
        to_delete: names of folders.
        is_whole: whether a folder's files are to the last byte what was written; asked of those
            that look good, the newest first, until one is.
    """
    looking_good = [item.name for item in checkpoints if not item.problem]
    newest = next(filter(is_whole, reversed(looking_good)), None)
    if newest in to_delete:
        return f"{newest} is the newest good checkpoint: the job would resume from it"
    if newest is None:
        return "none of the job's checkpoints is good: a damaged one may be all that is left"
    for item in checkpoints:
        if item.name in to_delete and item.problem == UNFINISHED:
            return f"{item.name} has no manifest: a job that runs may be writing it"
        if item.name in to_delete and item.unreadable:
            return f"{item.name} may be the newest good checkpoint; {item.problem}"
    return ""


UNFINISHED = "no manifest: being written or removed, or left by a crash"


_MAX_LISTED = 8


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One folder that is named like a checkpoint."""

    name: str
    step: int
    round: int
    files: int
    """Ranks' files that are there."""
    bytes: int
    """Of them together."""
    problem: str = ""
    """Empty: the manifest is good and its files are there in their sizes."""
    unreadable: bool = False
    """The problem is that it could not be looked at."""
    world_size: int | None = None
    """None, as all below: the manifest cannot be read."""
    replicated: bool | None = None
    pieces: bool | None = None
    saved_at: float | None = None
    """Unix seconds."""
    metrics: dict[str, float] | None = None
    """What the script measured."""

    @property
    def kind(self) -> str:
        """How the ranks held the state."""
        if self.world_size is None:
            return ""
        held = [
            *(["replicated"] if self.replicated else []),
            *(["sharded"] if self.pieces else []),
        ]
        return ", ".join(held) or "each rank its own"


def inspect_folders(
    storage: Storage, folders: Iterable[CheckpointFolder]
) -> Iterator[CheckpointInfo]:
    """Look at folders, one after the other; one that cannot be looked at hides no other.

    Raises:
        StorageError: the storage as a whole cannot be read.
    """
    for folder in folders:
        found = CheckpointInfo(folder.name, folder.step, folder.state.round.number, 0, 0)
        try:
            yield _inspect(storage, folder, found)
        except errors.StorageError as error:
            require_isolated_error(error)
            yield dataclasses.replace(found, problem=str(error), unreadable=True)


def _inspect(storage: Storage, folder: CheckpointFolder, info: CheckpointInfo) -> CheckpointInfo:
    sizes = storage.sizes(folder)
    ours = [size for name, size in sizes.items() if manifest.is_safe_file_name(name)]
    info = dataclasses.replace(info, files=len(ours), bytes=sum(ours))
    if manifest.NAME not in sizes:
        return dataclasses.replace(info, problem=UNFINISHED)
    try:
        content = storage.read_manifest(folder)
    except errors.CorruptSnapshot as error:
        return dataclasses.replace(info, problem=str(error), unreadable=_is_unknown(error))
    except errors.StorageError:
        if not was_removed(storage, folder):
            raise
        return dataclasses.replace(info, problem=UNFINISHED)
    return dataclasses.replace(
        info,
        problem=_problem(folder, content, sizes),
        world_size=content.world_size,
        replicated=content.replicated,
        pieces=content.pieces,
        saved_at=content.saved_at,
        metrics=content.metrics,
    )


def require_isolated_error(error: errors.StorageError) -> None:
    """Go on only if a file system refuses one folder or file, by its owner or for a bad sector.

    Raises:
        StorageError: an object store does not answer, and would not for the others.
    """
    if not isinstance(error.__cause__, OSError):
        raise error


def abbreviate(words: Sequence[str]) -> str:
    """Words for a message, the last of them where they are many."""
    told = ", ".join(words[-_MAX_LISTED:]) or "none"
    return told if len(words) <= _MAX_LISTED else f"{len(words)}, the newest {told}"


def was_removed(storage: Storage, folder: CheckpointFolder) -> bool:
    """Whether a checkpoint that could not be read has been removed, as by a running job.

    Raises:
        StorageError: the storage cannot be read.
    """
    return manifest.NAME not in storage.sizes(folder)


@contextlib.contextmanager
def report_removal(storage: Storage, folder: CheckpointFolder) -> Iterator[None]:
    """Say of a checkpoint that goes while it is read that it went, not which file lacks.

    Raises:
        StorageError: it was removed.
    """
    try:
        yield
    except (errors.StorageError, errors.CorruptSnapshot) as cause:
        if not was_removed(storage, folder):
            raise
        raise errors.StorageError(
            f"{folder.location} was removed while it was read, as a running job's retention does: "
            "take the newest again, or let more of them stay (checkpoint.keep, keep-every)"
        ) from cause


def _problem(folder: CheckpointFolder, content: Manifest, sizes: Mapping[str, int]) -> str:
    try:
        verification.check_sizes(folder, content, sizes)
    except errors.CorruptSnapshot as error:
        return str(error)
    return ""


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


def _is_unknown(error: errors.CorruptSnapshot) -> bool:
    """Whether another release wrote a manifest, which is no damage."""
    return isinstance(error, errors.UnknownFormat)


def _verify_files(
    storage: Storage, folder: CheckpointFolder, sizes: Mapping[str, int]
) -> Iterator[FileVerification]:
    try:
        content = storage.read_manifest(folder)
    except errors.CorruptSnapshot as error:
        yield FileVerification(manifest.NAME, 0, str(error), unreadable=_is_unknown(error))
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
