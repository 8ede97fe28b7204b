# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where files lie, listed and read: a folder that is mounted, or an object store's by pyarrow."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from rover_kf import errors
from rover_kf.datasets import arrow_folders
from rover_kf.datasets.files import SourceFile


class FileInfo(NamedTuple):
    """A file as it was when the data set was made."""

    name: str
    """Below its place; the same wherever that is mounted."""
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970; 0 where that is not looked at."""


class Filesystem(Protocol):
    """Reads what was listed."""

    def path(self, name: str) -> str:
        """For messages."""

    def read(self, file: FileInfo) -> bytes:
        """All of it.

        Raises:
            DatasetReadError: it is gone, was changed, or cannot be read.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class MountedFilesystem:
    """One that is mounted."""

    root: pathlib.Path

    def path(self, name: str) -> str:
        """See Filesystem."""
        return str(self.root / name)

    def read(self, file: FileInfo) -> bytes:
        """See Filesystem."""
        path = self.path(file.name)
        with SourceFile(path, file.name, file.size, file.modified).open() as stream:
            try:
                return stream.read()
            except OSError as cause:
                raise errors.DatasetReadError(f"{path} cannot be read: {cause}") from cause


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectStoreFilesystem:
    """A prefix of a bucket, or whatever else pyarrow has an address for."""

    root: str
    filesystem: Any
    """pyarrow's."""

    def path(self, name: str) -> str:
        """See Filesystem."""
        return f"{self.root}/{name}"

    def read(self, file: FileInfo) -> bytes:
        """See Filesystem; that it was changed is seen by its size alone."""
        path = self.path(file.name)
        try:
            with self.filesystem.open_input_file(path) as stream:
                content: bytes = stream.read()
        except (arrow_folders.import_pyarrow().ArrowException, OSError) as cause:
            raise errors.DatasetReadError(f"{path} cannot be read: {cause}") from cause
        if len(content) != file.size:
            raise errors.DatasetReadError(
                f"{path} was changed while the job trains: {file.size} bytes have become "
                f"{len(content)}; leave the files of a data set as they are, or restart the job "
                "without its checkpoint to train on the new ones"
            )
        return content


def list_files(source: str, endings: tuple[str, ...]) -> tuple[Filesystem, Iterable[FileInfo]]:
    """A place and its files, in an order that is the same everywhere.

    Args:
        source: a folder, a file, or an address.
        endings: of names in folders; none: all. Names that begin with a dot or ``_`` are left out.

    Raises:
        InputError: there is no such source.
    """
    if "://" in source:
        filesystem, root, files = arrow_folders.list_below(source, endings)
        return ObjectStoreFilesystem(root, filesystem), [
            FileInfo(name, size, 0) for name, size in files
        ]
    path = pathlib.Path(source)
    if path.is_dir():
        return MountedFilesystem(path), _walk(source, "", (path.resolve(),), endings)
    if path.is_file():
        facts = path.stat()
        return MountedFilesystem(path.parent), [
            FileInfo(path.name, facts.st_size, facts.st_mtime_ns)
        ]
    raise errors.InputError(f"there is no {source}; is the volume with the data mounted there?")


def _walk(
    folder: str, prefix: str, above: tuple[pathlib.Path, ...], endings: tuple[str, ...]
) -> Iterator[FileInfo]:
    """Files of a folder and of those below it, links followed: a folder's in order of their names.

    Args:
        folder: its path.
        prefix: of its files' names.
        above: it and the folders that it is in, without links.
        endings: see ``listed``.
    """
    with os.scandir(folder) as entries:
        known = sorted(entries, key=lambda entry: entry.name)
    for entry in known:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            link = entry.is_symlink()
            real = pathlib.Path(entry.path).resolve() if link else above[-1] / entry.name
            if real in above:
                raise errors.InputError(f"{entry.path} leads back to {real}; remove that link")
            yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, real), endings)
        elif entry.is_file() and (not endings or entry.name.endswith(endings)):
            facts = entry.stat()
            yield FileInfo(prefix + entry.name, facts.st_size, facts.st_mtime_ns)
