# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's state put together from all its files, whatever the world that wrote them.

What of it is no tensor (numbers, strings and the like) is told by its path.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
from collections.abc import Callable, Iterator
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
from rover_kf.checkpoint_tools.inspection import report_removal


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

    def fill_file(self, descriptor: int) -> None:
        """Make an empty open file the put-together snapshot; raises as fill does, and OSError."""
        # Room first: a full disk is an error here, and a signal in the midst of a mapping.
        os.posix_fallocate(descriptor, 0, self.assembly.length)
        with mmap.mmap(descriptor, self.assembly.length) as mapping, memoryview(mapping) as target:
            self.fill(target)


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


@dataclasses.dataclass(frozen=True, slots=True)
class PlainValue:
    """One plain value; a list or tuple of such counts as one."""

    name: str
    """Path as in tensors' names: ``optimizer.param_groups.0.lr``."""
    path: tuple[str, ...]
    """The same, with the types of keys and containers."""
    content: Any

    @property
    def encoded(self) -> Any:
        """As JSON that keeps its type (rover_kf.checkpoint.format.plain_data)."""
        return plain_data.encode(self.content)

    @property
    def text(self) -> str:
        """Its type and content, exactly: nan equals nan, 1 is not 1.0, 0.0 is not -0.0."""
        return json.dumps(self.encoded, sort_keys=True)


def iter_values(tree: dict[Any, Any]) -> Iterator[PlainValue]:
    """Every plain value of a state.

    Args:
        tree: the state, a Reference in place of every tensor.
    """
    yield from _below(tree, (), ())


def _below(value: Any, names: tuple[str, ...], path: tuple[str, ...]) -> Iterator[PlainValue]:
    if isinstance(value, TensorReference):
        return
    if isinstance(value, dict) and value:
        for key, item in value.items():
            name = str(key) if isinstance(key, (str, int)) else repr(key)
            step = f"d{json.dumps(plain_data.encode(key))}"
            yield from _below(item, (*names, name), (*path, step))
    elif isinstance(value, (list, tuple)) and any(map(_is_branch, value)):
        for index, item in enumerate(value):
            step = f"{type(value).__name__}{index}"
            yield from _below(item, (*names, str(index)), (*path, step))
    else:
        yield PlainValue(".".join(names), path, value)


def _is_branch(value: Any) -> bool:
    """Whether it is, or holds, more than plain values in a row."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_branch, value))
    return isinstance(value, (TensorReference, dict))


def replace_references(tree: dict[Any, Any], tensor: Callable[[str], object]) -> dict[Any, Any]:
    """The state with a tensor in place of every Reference.

    Args:
        tree: the state.
        tensor: gives the tensor of a name.
    """
    return {key: _replace(item, tensor) for key, item in tree.items()}


def _replace(value: Any, tensor: Callable[[str], object]) -> Any:
    if isinstance(value, TensorReference):
        return tensor(value.name)
    if isinstance(value, dict):
        return type(value)(replace_references(value, tensor))  # a Counter stays one
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(item, tensor) for item in value)
    return value
