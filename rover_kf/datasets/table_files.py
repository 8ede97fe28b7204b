# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parquet and Arrow files, what their footers say, and how their row groups are read."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rover_kf import errors
from rover_kf.datasets import arrow_folders
from rover_kf.datasets.arrow_folders import import_pyarrow
from rover_kf.datasets.files import Sources

_ENDINGS = (".parquet", ".arrow", ".feather")
_AT_ONCE = 16
"""Footers that are read side by side: an object store takes its time for each."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableFile:
    """One file as it was when the data set was made."""

    number: int
    path: str
    name: str
    """Below the folder that was given."""
    size: int
    """Bytes."""
    digest: str
    """Of its footer."""
    group_rows: tuple[int, ...]
    """Rows of each row group."""
    filesystem: Any
    """pyarrow's."""

    def open(self) -> RowGroupReader:
        """Open it as it was.

        Raises:
            DatasetReadError: it is gone, or was changed since.
        """
        groups = RowGroupReader(self.path, self.filesystem)
        if (groups.size, groups.digest) != (self.size, self.digest):
            raise errors.DatasetReadError(
                f"{self.path} was changed while the job trains: its size or its footer is another "
                "one; leave the files of a data set as they are, or restart the job without its "
                "checkpoint to train on the new ones"
            )
        return groups


class RowGroupReader:
    """An open file.

    Args:
        path: of the file.
        filesystem: that it is on.

    Raises:
        DatasetReadError: it is gone, or none of its kind.
    """

    def __init__(self, path: str, filesystem: Any) -> None:
        pyarrow = import_pyarrow()
        try:
            stream = filesystem.open_input_file(path)
            self.size = stream.size()
            if path.endswith(".parquet"):
                self._open_parquet(stream)
            else:
                self._open_arrow(stream)
        except (pyarrow.ArrowException, OSError) as cause:
            kind = "Parquet" if path.endswith(".parquet") else "Arrow"
            raise errors.DatasetReadError(
                f"{path} cannot be read as a {kind} file: {cause}; write it again, or leave it out"
            ) from cause

    def _open_parquet(self, stream: Any) -> None:
        parquet = importlib.import_module("pyarrow.parquet")
        file = parquet.ParquetFile(stream, page_checksum_verification=True)
        about = file.metadata
        self.digest = _footer(stream, about.serialized_size + 8)
        self.columns = tuple(about.schema.to_arrow_schema().names)
        self.group_rows = tuple(
            about.row_group(group).num_rows for group in range(about.num_row_groups)
        )
        # Threads of pyarrow are of no use beside other workers, and none outlives a fork.
        self.read: Callable[[int, list[str] | None], Any] = lambda group, columns: (
            file.read_row_group(group, columns, use_threads=False)
        )

    def _open_arrow(self, stream: Any) -> None:
        pyarrow, ipc = import_pyarrow(), importlib.import_module("pyarrow.ipc")
        file = ipc.open_file(stream, options=ipc.IpcReadOptions(use_threads=False))
        # The footer does not say how many rows a batch has; the first column is read for it.
        first = ipc.IpcReadOptions(use_threads=False, included_fields=[0])
        counted = ipc.open_file(stream, options=first)
        tail = stream.read_at(min(10, self.size), max(self.size - 10, 0))
        self.digest = _footer(stream, int.from_bytes(tail[:4], "little") + 10)
        self.columns = tuple(file.schema.names)
        self.group_rows = tuple(
            counted.get_batch(group).num_rows for group in range(file.num_record_batches)
        )

        def read(group: int, columns: list[str] | None) -> Any:
            table = pyarrow.Table.from_batches([file.get_batch(group)])
            return table if columns is None else table.select(columns)

        self.read = read


def _footer(stream: Any, size: int) -> str:
    whole = stream.size()
    size = min(size, whole)
    return hashlib.blake2b(stream.read_at(size, whole - size), digest_size=16).hexdigest()


def discover(sources: Sources, columns: Sequence[str] | None) -> tuple[TableFile, ...]:
    """All files with their footers, those of folders sorted by name.

    Args:
        sources: files and folders, or one address.
        columns: that each file must have.

    Raises:
        InputError: there are no such files, or one lacks a column.
        DatasetReadError: a file is none of its kind.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    places = [place for source in given for place in _below(os.fspath(source))]
    if not places:
        raise errors.InputError("a data set of no files: name at least one")

    def read_footer(number: int) -> TableFile:
        path, name, filesystem = places[number]
        groups = RowGroupReader(path, filesystem)
        lacking = sorted(set(columns or ()) - set(groups.columns))
        if lacking:
            raise errors.InputError(
                f"{path} has no column {', '.join(lacking)}; it has {', '.join(groups.columns)}"
            )
        return TableFile(
            number, path, name, groups.size, groups.digest, groups.group_rows, filesystem
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(read_footer, range(len(places))))


def _below(source: str) -> list[tuple[str, str, Any]]:
    """Path, name below the source and file system of each file."""
    system, root, files = arrow_folders.list_below(source, _ENDINGS)
    return [(f"{root}/{name}" if root else name, name, system) for name, _ in files]
