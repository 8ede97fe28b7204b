# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the sidecar asks of a place that outlives the pods; one Storage holds one job's checkpoints.

Sidecars write their ranks' files, the coordinator writes the manifest last, lists, verifies and
removes. After a crash at any point a checkpoint is whole, or has no manifest and is nothing.
Every method blocks: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from rover_kf import errors
from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.retention import KEEP_NEWEST, RetentionExceptions


class RankWriter(Protocol):
    """The part of a Storage that writes ranks' files."""

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""

    def write_rank(
        self, folder: CheckpointFolder, rank: int, content: Iterable[memoryview], length: int
    ) -> RankFile:
        """Write a rank's file, safe when it returns; holds no more than a few pieces at a time.

        A file of that rank that is there already stays, and the new one has another name: the
        former may have been reported, and a manifest may come to name it at any moment.

        Args:
            folder: of the checkpoint.
            rank: whose state it is.
            content: the file's bytes in order; a piece may be overwritten when the next is asked
                for.
            length: of all pieces together, bytes.

        Returns:
            The file with the CRC-32C of the bytes that were written.

        Raises:
            CheckpointExists: the folder has a manifest.
            StorageError: the storage refused; nothing is left that could be taken for a file.
            CorruptSnapshot: the content has another length, or their source raised it.
        """


class StoredCheckpoints(Protocol):
    """The checkpoints of one job, but for how ranks' files come there."""

    def claim(self, stated: Claim) -> None:
        """Claim the job's folder, or check that the claim still holds; before each change.

        Raises:
            NotOwner: another job owns the folder.
            Superseded: a later coordinator of this job has replaced this one.
            StorageError: the storage refused.
        """

    def last_generation(self) -> int:
        """The greatest generation that has claimed the folder; 0: none has.

        Raises:
            StorageError: the storage cannot be read.
        """

    def folder(self, state: State) -> CheckpointFolder:
        """Where that checkpoint is, or would be."""

    def write_manifest(self, content: Manifest) -> CheckpointFolder:
        """Make the folder a checkpoint; safe when it returns. A manifest is never replaced.

        Raises:
            StorageError: the storage refused, a rank's file is not there whole, or another
                coordinator has made it a checkpoint of other files.
        """

    def ensure_durable(self, folder: CheckpointFolder) -> None:
        """Make a checkpoint safe that can be seen: who wrote it may have died just before it was.

        Raises:
            StorageError: the storage refused.
        """

    def folders(self) -> tuple[CheckpointFolder, ...]:
        """Every folder that is named like a checkpoint, oldest first.

        Raises:
            StorageError: the storage cannot be read.
        """

    def complete_folders(self) -> tuple[CheckpointFolder, ...]:
        """Folders that have a manifest, oldest first; what it says is not checked yet.

        Raises:
            StorageError: the storage cannot be read.
        """

    def sizes(self, folder: CheckpointFolder) -> Mapping[str, int]:
        """Bytes of every file of a folder, by its name there; none if there is no such folder.

        Raises:
            StorageError: the storage cannot be read.
        """

    def read_manifest(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest; its files are not looked at.

        Raises:
            CorruptSnapshot: it is damaged.
            StorageError: there is none, or the storage cannot be read.
        """

    def load(self, folder: CheckpointFolder) -> Manifest:
        """Read a manifest and check that its files are there in their sizes.

        Raises:
            CorruptSnapshot: the manifest is damaged, or a file is missing or has another size.
            StorageError: the storage cannot be read.
        """

    def verify(self, folder: CheckpointFolder) -> Manifest:
        """Read every byte of a checkpoint and compare the checksums.

        Raises:
            CorruptSnapshot: something differs; the message names it.
            StorageError: the storage cannot be read.
        """

    def read_range(
        self, folder: CheckpointFolder, file: RankFile, offset: int, length: int
    ) -> Iterator[memoryview]:
        """A range of a rank's file; each piece is valid until the next is asked for.

        Raises:
            CorruptSnapshot: the file ends before the range does.
            StorageError: the storage cannot be read.
        """

    def remove(self, folder: CheckpointFolder) -> None:
        """Remove a checkpoint, its manifest first: half-removed it must not look like a whole one.

        Raises:
            StorageError: the storage refused.
        """

    def collect(
        self,
        keep: int,
        *,
        current: RoundId,
        spare: RetentionExceptions = KEEP_NEWEST,
        below: State = NO_STATE,
    ) -> tuple[CheckpointFolder, ...]:
        """Remove what retention does not keep and what crashes left; returns what was removed.

        Args:
            keep: how many of the newest whole checkpoints stay; at least one does.
            current: the running round: unfinished folders of older ones are leftovers.
            spare: which others stay.
            below: a state that every rank of the running round has come to: unfinished folders of
                its older ones are leftovers, too.

        Raises:
            StorageError: the storage refused.
            Superseded: a later round is there: this coordinator was replaced.
        """


class Storage(RankWriter, StoredCheckpoints, Protocol):
    """The checkpoints of one job."""


def check_length(content: Iterable[memoryview], length: int) -> Iterator[memoryview]:
    """Pass the pieces on; ends with an error unless they are so many bytes.

    Raises:
        CorruptSnapshot: they are more or fewer.
    """
    count = 0
    for piece in content:
        count += len(piece)
        if count > length:
            break
        yield piece
    if count != length:
        raise errors.CorruptSnapshot(f"a snapshot of {count} bytes where {length} were sealed")
