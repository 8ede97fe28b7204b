# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's state put together from all its files, whatever the world that wrote them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rover_kf import errors
from rover_kf.checkpoint.format import plain_data, snapshot
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import (
    LAYOUT_KEY,
    TensorLayout,
    read_tensor_layout,
)
from rover_kf.checkpoint.resharding import assembly
from rover_kf.checkpoint.resharding.assembly import Assembly
from rover_kf.checkpoint.resharding.copy_runs import scatter
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.checkpoint_tools.listing import report_removal


@dataclasses.dataclass(frozen=True, slots=True)
class TensorReference:
    """A tensor, where it stands in the state."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class ConsolidatedState:
    """The state as one rank of a world of one would have it; tensors are not read yet."""

    storage: Storage
    folder: CheckpointFolder
    manifest: Manifest
    files: tuple[RankFile, ...]
    """The rank's own first."""
    headers: tuple[Snapshot, ...]
    """Of these files."""
    assembly: Assembly
    """Which of their bytes go where."""
    content: Snapshot
    """What the put-together snapshot holds."""

    @property
    def rank(self) -> int:
        """Whose own tensors and plain values these are."""
        return self.files[0].rank

    @property
    def rank_local(self) -> frozenset[str]:
        """Tensors that are the rank's alone."""
        return read_tensor_layout(self.content).rank_local

    def tree(self) -> dict[Any, Any]:
        """The state as it was given to save, a Reference in place of every tensor.

        Raises:
            CorruptSnapshot: it cannot be read.
        """
        location = f"{self.folder.location}/{self.files[0].name}"
        try:
            found = plain_data.decode(
                json.loads(self.content.metadata[snapshot.STATE_KEY]), TensorReference
            )
        except (KeyError, ValueError) as cause:
            raise errors.CorruptSnapshot(f"{location} holds no state: {cause!r}") from cause
        except errors.CorruptSnapshot as error:
            raise errors.CorruptSnapshot(f"{location}: {error}") from error
        if not isinstance(found, dict):
            raise errors.CorruptSnapshot(f"{location}: the state is no dict")
        return found

    def for_rank(self, rank: int) -> ConsolidatedState:
        """The same with another rank's own tensors and plain values.

        Raises:
            InputError: no such rank wrote.
            CheckpointError: a part is in no file.
        """
        heads = {file.rank: head for file, head in zip(self.files, self.headers, strict=True)}
        files = _order_files(self.manifest, rank)
        return _assemble(
            self.storage, self.folder, self.manifest, files, tuple(heads[f.rank] for f in files)
        )

    def rank_local_of(self, rank: int) -> ConsolidatedState:
        """Another rank's own tensors and plain values alone, which are in its file.

        Raises:
            InputError: no such rank wrote.
        """
        heads = {file.rank: head for file, head in zip(self.files, self.headers, strict=True)}
        file = _order_files(self.manifest, rank)[0]
        head = _rank_local_header(heads[rank])
        return _assemble(self.storage, self.folder, self.manifest, (file,), (head,))

    def fill(self, target: memoryview) -> None:
        """Write the put-together snapshot; every file that is needed is read and verified.

        Args:
            target: of made.length bytes.

        Raises:
            CorruptSnapshot: a file is damaged; the target is then worth nothing.
            StorageError: the storage cannot be read.
        """
        target[: len(self.assembly.header)] = self.assembly.header
        for file, copies in zip(self.files, self.assembly.copies, strict=True):
            at = 0
            if not copies:
                continue
            with report_removal(self.storage, self.folder):
                for piece in verification.read_verified(self.storage, self.folder, file):
                    scatter(piece, at, copies, target)
                    at += len(piece)


def open_state(storage: Storage, folder: CheckpointFolder, rank: int = 0) -> ConsolidatedState:
    """Read the manifest and the files' headers.

    Args:
        storage: of the job.
        folder: of the checkpoint.
        rank: whose own tensors and plain values to take.

    Raises:
        InputError: no such rank wrote.
        CorruptSnapshot: the checkpoint is damaged.
        CheckpointError: a part is in no file.
        StorageError: the storage cannot be read.
    """
    content = storage.load(folder)
    files = _order_files(content, rank)
    with report_removal(storage, folder):
        heads = tuple(_read_header(storage, folder, file) for file in files)
    return _assemble(storage, folder, content, files, heads)


def _read_header(storage: Storage, folder: CheckpointFolder, file: RankFile) -> Snapshot:
    """What a file says it holds; if that is damaged the message says which file it is."""
    try:
        found = verification.read_header(storage, folder, file)
        read_tensor_layout(found)
    except errors.CorruptSnapshot as error:
        raise errors.CorruptSnapshot(f"{folder.location}/{file.name}: {error}") from error
    return found


def _rank_local_header(head: Snapshot) -> Snapshot:
    """The header without tensors that other ranks hold, or hold parts of."""
    local = read_tensor_layout(head).rank_local
    return dataclasses.replace(
        head,
        metadata={**head.metadata, LAYOUT_KEY: TensorLayout(local).to_text()},
        tensors={name: place for name, place in head.tensors.items() if name in local},
    )


def _order_files(content: Manifest, rank: int) -> tuple[RankFile, ...]:
    ranks = [file.rank for file in content.files]
    if rank not in ranks:
        raise errors.InputError(
            f"{content.state} has no rank {rank}; it was written by ranks {min(ranks)} to "
            f"{max(ranks)}"
        )
    return tuple(sorted(content.files, key=lambda file: (file.rank != rank, file.rank)))


def _assemble(
    storage: Storage,
    folder: CheckpointFolder,
    content: Manifest,
    files: tuple[RankFile, ...],
    heads: tuple[Snapshot, ...],
) -> ConsolidatedState:
    try:
        made = assembly.plan(heads, 0)
    except errors.CheckpointError as error:  # which of the files is wrong nothing tells
        raise errors.CheckpointError(f"{folder.location}: {error}") from error
    found = snapshot.read(made.header, made.length)
    return ConsolidatedState(storage, folder, content, files, heads, made, found)
