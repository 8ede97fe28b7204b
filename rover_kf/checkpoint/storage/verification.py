# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a stored checkpoint and checked on the way; the same for any storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from rover_kf import errors
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.format import checksum, chunks, manifest, snapshot
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.storage import retention
from rover_kf.checkpoint.storage.retention import RetentionExceptions
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints


def load(storage: StoredCheckpoints, folder: CheckpointFolder) -> Manifest:
    """Read a manifest and check that its files are there in their sizes.

    Raises:
        CorruptSnapshot: the manifest is damaged, or a file is missing or has another size.
        StorageError: the storage cannot be read.
    """
    content = storage.read_manifest(folder)
    check_sizes(folder, content, storage.sizes(folder))
    return content


def load_valid(
    load: Callable[[CheckpointFolder], Manifest], folders: Iterable[CheckpointFolder]
) -> tuple[Mapping[CheckpointFolder, Manifest], Mapping[CheckpointFolder, errors.StorageError]]:
    """Of folders that have a manifest those whose files are there in their sizes.

    Args:
        load: as ``storage.load``.
        folders: that have a manifest.

    Returns:
        These, and those of which that cannot be known: the file system refuses, or another
        release wrote the manifest.

    Raises:
        StorageError: an object store does not answer.
    """
    found: dict[CheckpointFolder, Manifest] = {}
    unread: dict[CheckpointFolder, errors.StorageError] = {}
    for folder in folders:
        try:
            found[folder] = load(folder)
        except errors.UnknownFormat as error:  # noqa: PERF203 - it reads files
            unread[folder] = errors.StorageError(str(error))
        except errors.CorruptSnapshot:
            continue
        except errors.StorageError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            unread[folder] = error
    return found, unread


def filter_valid(
    load: Callable[[CheckpointFolder], Manifest],
    folders: Collection[CheckpointFolder],
    whole: Collection[CheckpointFolder],
    *,
    keep: int,
    current: RoundId,
    spare: RetentionExceptions,
    below: State,
) -> tuple[
    Mapping[CheckpointFolder, Manifest],
    tuple[CheckpointFolder, ...],
    tuple[errors.StorageError, ...],
]:
    """Good checkpoints that stay, folders to remove, and why others cannot be judged, which stay.

    Args:
        load: as ``storage.load``.
        folders: all of the job's.
        whole: of these, those with a manifest.
        keep: as for ``storage.collect``, and so are the others.
        current: the running round.
        spare: which others stay.
        below: a state that every rank has come to.

    Raises:
        StorageError: the storage as a whole cannot be read.
        Superseded: a later round is there: this coordinator was replaced.
    """
    _check_newest(whole, current)
    found, unread = load_valid(load, sorted(whole))
    spared = spare.select({folder: content.metrics for folder, content in found.items()})
    doomed = retention.deletable(
        [folder for folder in folders if folder not in unread],
        tuple(found),
        set(folders) - set(whole),
        keep=keep,
        current=current,
        spared=spared,
        below=below,
    )
    gone = set(doomed)
    kept = {folder: content for folder, content in found.items() if folder not in gone}
    return kept, doomed, tuple(unread.values())


def _check_newest(whole: Collection[CheckpointFolder], current: RoundId) -> None:
    newest = max(whole, default=None)
    if newest is not None and newest.state.round > current:
        raise errors.Superseded(
            f"{newest.location} was saved after round {current}, in which this coordinator is: it "
            "was replaced, and removes nothing"
        )


def read_header(storage: StoredCheckpoints, folder: CheckpointFolder, file: RankFile) -> Snapshot:
    """What a rank's file says it holds; its header alone is read.

    Raises:
        CorruptSnapshot: it cannot be read.
        StorageError: the storage cannot be read.
    """
    first = chunks.join(storage.read_range(folder, file, 0, snapshot.LENGTH_BYTES))
    size = snapshot.header_size(first, file.length)
    return snapshot.read(chunks.join(storage.read_range(folder, file, 0, size)), file.length)


def verify(storage: StoredCheckpoints, folder: CheckpointFolder) -> Manifest:
    """Read every byte of a checkpoint and compare the checksums.

    Raises:
        CorruptSnapshot: something differs; the message names it.
        StorageError: the storage cannot be read.
    """
    content = storage.load(folder)
    for file in content.files:
        for _ in read_verified(storage, folder, file):
            pass
    return content


def read_verified(
    storage: StoredCheckpoints, folder: CheckpointFolder, file: RankFile
) -> Iterator[memoryview]:
    """All bytes of a rank's file, and then the certainty that they are those of the manifest.

    Raises:
        CorruptSnapshot: they are not; known only after the last piece.
        StorageError: the storage cannot be read.
    """
    found = 0
    for piece in storage.read_range(folder, file, 0, file.length):
        found = checksum.extend(found, piece)
        yield piece
    check_crc(folder, file, found)


def orphan_files(content: Manifest, names: Iterable[str]) -> set[str]:
    """Of a checkpoint's files those of ranks that its manifest does not name: it never will."""
    named = {file.name for file in content.files}
    return {name for name in names if manifest.is_rank_file_name(name) and name not in named}


def check_unfinished(folder: CheckpointFolder, *, has_manifest: bool) -> None:
    """Before a rank's file is written: a checkpoint stays what its manifest says.

    Raises:
        CheckpointExists: the folder is a checkpoint.
    """
    if has_manifest:
        raise errors.CheckpointExists(
            f"{folder.location} is a checkpoint already, its files are not replaced; save what has "
            "changed since as another step"
        )


def check_reported(content: Manifest, folder: CheckpointFolder, sizes: Mapping[str, int]) -> None:
    """Before a manifest is written: are the files there as they were reported?

    Args:
        content: of the manifest.
        folder: that it is for.
        sizes: bytes of the files there, by their names.

    Raises:
        StorageError: a file is not there whole.
    """
    for file in content.files:
        found = sizes.get(file.name)
        if found != file.length:
            raise errors.StorageError(
                f"{folder.location}/{file.name} has {found} bytes, {file.length} were reported"
            )


def check_same(there: Manifest, content: Manifest, folder: CheckpointFolder) -> None:
    """Compare a manifest that is there with the one that was to be written.

    Raises:
        StorageError: it names other files; an answer that was lost leads to the same one.
    """
    if dataclasses.replace(there, saved_at=content.saved_at) != content:
        raise errors.StorageError(
            f"{folder.manifest_location} was written by another coordinator with other files; it "
            "stays, and this one's step is not committed"
        )


def check_sizes(folder: CheckpointFolder, content: Manifest, sizes: Mapping[str, int]) -> None:
    """Compare the sizes of a checkpoint's files, by their names there, with the manifest's.

    Raises:
        CorruptSnapshot: a file is missing or has another size.
    """
    for file in content.files:
        check_size(folder, file, sizes.get(file.name))


def check_size(folder: CheckpointFolder, file: RankFile, size: int | None) -> None:
    """Compare a file's size with the manifest's; None: there is no such file.

    Raises:
        CorruptSnapshot: they differ.
    """
    if size != file.length:
        state = "is missing" if size is None else f"has {size} bytes"
        raise errors.CorruptSnapshot(
            f"{folder.location}/{file.name} {state}; the manifest says {file.length}"
        )


def check_crc(folder: CheckpointFolder, file: RankFile, actual: int) -> None:
    """Compare a checksum with the manifest's.

    Raises:
        CorruptSnapshot: they differ.
    """
    if actual != file.checksum:
        raise errors.CorruptSnapshot(
            f"{folder.location}/{file.name} has CRC-32C {actual:08x}; the manifest says "
            f"{file.checksum:08x}"
        )
