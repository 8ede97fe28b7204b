# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's state put together from all its files, whatever the world that wrote them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rover_kf import errors
from rover_kf.checkpoint.format import plain_data, snapshot
from rover_kf.checkpoint.format.manifest import Folder, Manifest, RankFile
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import kinds_of
from rover_kf.checkpoint.resharding import assembly
from rover_kf.checkpoint.resharding.assembly import Assembly
from rover_kf.checkpoint.resharding.copy_runs import scatter
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.checkpoint_tools.listing import removal_told


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A tensor, where it stands in the state."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class WholeState:
    """The state as one rank of a world of one would have it; tensors are not read yet."""

    storage: Storage
    folder: Folder
    manifest: Manifest
    files: tuple[RankFile, ...]
    """The rank's own first."""
    heads: tuple[Snapshot, ...]
    """Of these files."""
    made: Assembly
    """Which of their bytes go where."""
    content: Snapshot
    """What the put-together snapshot holds."""

    @property
    def rank(self) -> int:
        """Whose own tensors and plain values these are."""
        return self.files[0].rank

    @property
    def own(self) -> frozenset[str]:
        """Tensors that are the rank's alone."""
        return kinds_of(self.content).own

    def tree(self) -> dict[Any, Any]:
        """The state as it was given to save, a Reference in place of every tensor.

        Raises:
            TornSnapshot: it cannot be read.
        """
        location = f"{self.folder.location}/{self.files[0].name}"
        try:
            found = plain_data.decode(
                json.loads(self.content.metadata[snapshot.STATE_KEY]), Reference
            )
        except (KeyError, ValueError) as cause:
            raise errors.TornSnapshot(f"{location} holds no state: {cause!r}") from cause
        except errors.TornSnapshot as error:
            raise errors.TornSnapshot(f"{location}: {error}") from error
        if not isinstance(found, dict):
            raise errors.TornSnapshot(f"{location}: the state is no dict")
        return found

    def of_rank(self, rank: int) -> WholeState:
        """The same with another rank's own tensors and plain values.

        Raises:
            InputError: no such rank wrote.
            CheckpointError: a part is in no file.
        """
        heads = {file.rank: head for file, head in zip(self.files, self.heads, strict=True)}
        files = _ordered(self.manifest, rank)
        return _put_together(
            self.storage, self.folder, self.manifest, files, tuple(heads[f.rank] for f in files)
        )

    def own_of(self, rank: int) -> WholeState:
        """Another rank's own tensors and plain values alone, which are in its file.

        Raises:
            InputError: no such rank wrote.
        """
        heads = {file.rank: head for file, head in zip(self.files, self.heads, strict=True)}
        file = _ordered(self.manifest, rank)[0]
        found = (file,), (heads[rank],)
        return _put_together(self.storage, self.folder, self.manifest, *found, ranks=0)

    def fill(self, target: memoryview) -> None:
        """Write the put-together snapshot; every file that is needed is read and verified.

        Args:
            target: of made.length bytes.

        Raises:
            TornSnapshot: a file is damaged; the target is then worth nothing.
            StorageFailed: the storage cannot be read.
        """
        target[: len(self.made.header)] = self.made.header
        for file, copies in zip(self.files, self.made.copies, strict=True):
            at = 0
            if not copies:
                continue
            with removal_told(self.storage, self.folder):
                for piece in verification.verified(self.storage, self.folder, file):
                    scatter(piece, at, copies, target)
                    at += len(piece)


def open_state(storage: Storage, folder: Folder, rank: int = 0) -> WholeState:
    """Read the manifest and the files' headers.

    Args:
        storage: of the job.
        folder: of the checkpoint.
        rank: whose own tensors and plain values to take.

    Raises:
        InputError: no such rank wrote.
        TornSnapshot: the checkpoint is damaged.
        CheckpointError: a part is in no file.
        StorageFailed: the storage cannot be read.
    """
    content = storage.load(folder)
    files = _ordered(content, rank)
    with removal_told(storage, folder):
        heads = tuple(_head(storage, folder, file) for file in files)
    return _put_together(storage, folder, content, files, heads)


def _head(storage: Storage, folder: Folder, file: RankFile) -> Snapshot:
    """What a file says it holds; if that is damaged the message says which file it is."""
    try:
        found = verification.head(storage, folder, file)
        kinds_of(found)
    except errors.TornSnapshot as error:
        raise errors.TornSnapshot(f"{folder.location}/{file.name}: {error}") from error
    return found


def _ordered(content: Manifest, rank: int) -> tuple[RankFile, ...]:
    ranks = [file.rank for file in content.files]
    if rank not in ranks:
        raise errors.InputError(
            f"step {content.step} has no rank {rank}; it was written by ranks {min(ranks)} to "
            f"{max(ranks)}"
        )
    return tuple(sorted(content.files, key=lambda file: (file.rank != rank, file.rank)))


def _put_together(
    storage: Storage,
    folder: Folder,
    content: Manifest,
    files: tuple[RankFile, ...],
    heads: tuple[Snapshot, ...],
    *,
    ranks: int = 1,
) -> WholeState:
    try:
        made = assembly.plan(heads, 0, ranks=ranks)
    except errors.CheckpointError as error:  # which of the files is wrong nothing tells
        raise errors.CheckpointError(f"{folder.location}: {error}") from error
    found = snapshot.read(made.header, made.length)
    return WholeState(storage, folder, content, files, heads, made, found)
