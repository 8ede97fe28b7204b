# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the sidecar asks of a place that outlives the pods; one Storage holds one job's checkpoints.

Sidecars write their ranks' files, the coordinator writes the manifest last, lists, verifies and
removes. After a crash at any point a checkpoint is whole, or has no manifest and is nothing.
Every method blocks: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from rover_kf import errors
from rover_kf.checkpoint import checksum
from rover_kf.checkpoint.manifest import Folder, Manifest, RankFile


class RankWriter(Protocol):
    """The part of a Storage that writes ranks' files."""

    def folder(self, step: int, generation: int) -> Folder:
        """Where that checkpoint is, or would be."""

    def write_rank(
        self, folder: Folder, rank: int, content: Iterable[memoryview], length: int
    ) -> RankFile:
        """Write a rank's file, safe when it returns; holds no more than a few pieces at a time.

        Args:
            folder: of the checkpoint.
            rank: whose state it is.
            content: the file's bytes in order; a piece may be overwritten when the next is asked
                for.
            length: of all pieces together, bytes.

        Returns:
            The file with the CRC-32C of the bytes that were written.

        Raises:
            StorageFailed: the storage refused; nothing is left that could be taken for a file.
            TornSnapshot: the content has another length, or their source raised it.
        """


class Storage(RankWriter, Protocol):
    """The checkpoints of one job."""

    def write_manifest(self, content: Manifest) -> Folder:
        """Make the folder a checkpoint; safe when it returns.

        Raises:
            StorageFailed: the storage refused, or a rank's file is not there whole.
        """

    def folders(self) -> tuple[Folder, ...]:
        """Every folder that is named like a checkpoint, oldest first.

        Raises:
            StorageFailed: the storage cannot be read.
        """

    def whole(self) -> tuple[Folder, ...]:
        """Folders that have a manifest, oldest first; what it says is not checked yet.

        Raises:
            StorageFailed: the storage cannot be read.
        """

    def load(self, folder: Folder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes.

        Raises:
            TornSnapshot: the manifest is damaged, or a file is missing or has another size.
            StorageFailed: the storage cannot be read.
        """

    def verify(self, folder: Folder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums.

        Raises:
            TornSnapshot: something differs; the message names it.
            StorageFailed: the storage cannot be read.
        """

    def read_range(
        self, folder: Folder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for.

        Raises:
            TornSnapshot: the file ends before the range does.
            StorageFailed: the storage cannot be read.
        """

    def collect(self, keep: int, *, generation: int) -> tuple[Folder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed.

        Args:
            keep: how many of the newest whole checkpoints stay; at least one does.
            generation: of the running round: unfinished folders of older ones are leftovers.

        Raises:
            StorageFailed: the storage refused.
        """


def verify(storage: Storage, folder: Folder) -> Manifest:
    """Read every byte of a checkpoint and compare the checksums; for any Storage.

    Raises:
        TornSnapshot: something differs; the message names it.
        StorageFailed: the storage cannot be read.
    """
    content = storage.load(folder)
    for file in content.files:
        found = 0
        for piece in storage.read_range(folder, file, 0, file.length):
            found = checksum.extend(found, piece)
        check(folder, file, found)
    return content


def check_reported(
    content: Manifest, folder: Folder, size: Callable[[RankFile], int | None]
) -> None:
    """Before a manifest is written: are the files there as they were reported?

    Args:
        content: of the manifest.
        folder: that it is for.
        size: bytes of a file there; None if there is none.

    Raises:
        StorageFailed: a file is not there whole.
    """
    for file in content.files:
        found = size(file)
        if found != file.length:
            raise errors.StorageFailed(
                f"{folder.location}/{file.name} has {found} bytes, {file.length} were reported"
            )


def check_sizes(content: Manifest, folder: Folder, size: Callable[[RankFile], int | None]) -> None:
    """After a manifest is read: are the files there as it says?

    Args:
        content: of the manifest.
        folder: that it is in.
        size: bytes of a file there; None if there is none.

    Raises:
        TornSnapshot: a file is missing or has another size.
    """
    for file in content.files:
        found = size(file)
        if found != file.length:
            state = "is missing" if found is None else f"has {found} bytes"
            raise errors.TornSnapshot(
                f"{folder.location}/{file.name} {state}; the manifest says {file.length}"
            )


def counted(content: Iterable[memoryview], length: int) -> Iterator[memoryview]:
    """Pass the pieces on; ends with an error unless they are so many bytes.

    Raises:
        TornSnapshot: they are more or fewer.
    """
    count = 0
    for piece in content:
        count += len(piece)
        if count > length:
            break
        yield piece
    if count != length:
        raise errors.TornSnapshot(f"a snapshot of {count} bytes where {length} were sealed")


def check(folder: Folder, file: RankFile, found: int) -> None:
    """Compare a checksum with the manifest's.

    Raises:
        TornSnapshot: they differ.
    """
    if found != file.checksum:
        raise errors.TornSnapshot(
            f"{folder.location}/{file.name} has CRC-32C {found:08x}; the manifest says "
            f"{file.checksum:08x}"
        )
