# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet and Arrow files as samples: pyarrow reads them, row groups are the blocks."""

from __future__ import annotations

import array
import bisect
import dataclasses
import functools
import hashlib
import importlib
import itertools
import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rover_kf import errors

Sources = str | os.PathLike[str] | Sequence["str | os.PathLike[str]"]
"""A file, a folder, an address, or several of them."""
_ENDINGS = (".parquet", ".arrow", ".feather")
_AT_ONCE = 16
"""Footers that are read side by side: an object store takes its time for each."""


def import_pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as cause:
        raise errors.InputError(
            "Parquet and Arrow files are read with pyarrow, which is not installed here: "
            "pip install 'rover-kf[data]', or pyarrow in the training image"
        ) from cause


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A file as it was when the data set was made."""

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

    Raises:
        DatasetReadError: it is gone, or none of its kind.
    """

    read: Callable[[int, list[str] | None], Any]
    """A row group's columns, by its number."""

    def __init__(self, path: str, filesystem: Any) -> None:
        pyarrow = import_pyarrow()
        parquet = path.endswith(".parquet")
        try:
            stream = filesystem.open_input_file(path)
            self.size = stream.size()
            self.digest = _footer(stream, 4 if parquet else 6)
            if parquet:
                self._open_parquet(stream)
            else:
                self._open_arrow(pyarrow, stream)
        except (pyarrow.ArrowException, OSError) as cause:
            kind = "Parquet" if parquet else "Arrow"
            raise errors.DatasetReadError(
                f"{path} cannot be read as a {kind} file: {cause}; write it again, or leave it out"
            ) from cause

    def _open_parquet(self, stream: Any) -> None:
        parquet = importlib.import_module("pyarrow.parquet")
        file = parquet.ParquetFile(stream, page_checksum_verification=True)
        about = file.metadata
        self.columns = tuple(file.schema_arrow.names)
        self.group_rows = tuple(about.row_group(n).num_rows for n in range(about.num_row_groups))
        # Threads of pyarrow are of no use beside other workers, and none outlives a fork.
        self.read = lambda group, columns: file.read_row_group(group, columns, use_threads=False)

    def _open_arrow(self, pyarrow: Any, stream: Any) -> None:
        ipc = importlib.import_module("pyarrow.ipc")
        file = ipc.open_file(stream, options=ipc.IpcReadOptions(use_threads=False))
        # The footer does not say how many rows a batch has; the first column is read for it.
        first = ipc.IpcReadOptions(use_threads=False, included_fields=[0])
        counted = ipc.open_file(stream, options=first)
        self.columns = tuple(file.schema.names)
        self.group_rows = tuple(
            counted.get_batch(group).num_rows for group in range(file.num_record_batches)
        )

        def read(group: int, columns: list[str] | None) -> Any:
            table = pyarrow.Table.from_batches([file.get_batch(group)])
            return table if columns is None else table.select(columns)

        self.read = read


def _footer(stream: Any, magic: int) -> str:
    """Both formats end with the footer, four bytes for its size, and their magic."""
    whole = stream.size()
    tail = stream.read_at(min(4 + magic, whole), max(whole - 4 - magic, 0))
    size = min(int.from_bytes(tail[:4], "little") + 4 + magic, whole)
    return hashlib.blake2b(stream.read_at(size, whole - size), digest_size=16).hexdigest()


def discover(sources: Sources, columns: Sequence[str] | None) -> tuple[TableFile, ...]:
    """Read the footers of all files, which must have the columns; folders' files by name.

    Raises:
        InputError: there are no such files, or one lacks a column.
        DatasetReadError: a file is none of its kind.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    listed = [file for source in given for file in _list_below(os.fspath(source))]
    if not listed:
        raise errors.InputError("a data set of no files: name at least one")

    def read_footer(file: tuple[str, str, Any]) -> TableFile:
        path, name, filesystem = file
        groups = RowGroupReader(path, filesystem)
        lacking = sorted(set(columns or ()) - set(groups.columns))
        if lacking:
            raise errors.InputError(
                f"{path} has no column {', '.join(lacking)}; it has {', '.join(groups.columns)}"
            )
        return TableFile(path, name, groups.size, groups.digest, groups.group_rows, filesystem)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(read_footer, listed))


def _list_below(source: str) -> list[tuple[str, str, Any]]:
    """List path, name below the source and file system of each file; a file's own in any case."""
    failures = (import_pyarrow().ArrowException, OSError)
    fs = importlib.import_module("pyarrow.fs")
    local = (fs.LocalFileSystem(), source)
    try:
        filesystem, path = fs.FileSystem.from_uri(source) if "://" in source else local
        about = filesystem.get_file_info([path])[0]
        if about.type == fs.FileType.File:
            return [(path, about.base_name, filesystem)]
        listed = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    except failures as cause:
        raise errors.InputError(
            f"{source} cannot be listed: {cause}; is the volume with the data mounted there, "
            "and is its address one that pyarrow knows?"
        ) from cause
    root = path.rstrip("/") + "/"
    names = sorted(
        each.path[len(root) :]
        for each in listed
        if each.type == fs.FileType.File and each.path.endswith(_ENDINGS)
    )
    kept = [name for name in names if not name.startswith((".", "_"))]
    # Folders that begin so hold what engines leave beside their tables.
    kept = [name for name in kept if "/." not in name and "/_" not in name]
    if not kept:
        raise errors.InputError(
            f"{source} has no files that end with {' or '.join(_ENDINGS)}; is the volume with the "
            "data mounted there?"
        )
    return [(root + name, name, filesystem) for name in kept]


_OPEN = 8
"""Files that a process keeps open."""


class TableRows:
    """A map-style data set of rows, each a dict by column. Needs pyarrow.

    ::

        rows = TableRows("s3://bucket/train", columns=["pixels", "label"])
        loader = ElasticDataLoader(rows, batch_size=256, num_workers=2)

    Args:
        sources: files that end with .parquet, .arrow or .feather, or folders of them; or an
            address that pyarrow knows (s3://, gs://, hdfs://).
        columns: that are read; none: all.
        as_tables: a batch is one pyarrow.Table, which ``collate_fn`` gets, instead of dicts. It is
            for a collate_fn that makes tensors of columns. Reading a single row gives a table, too.
        cached: row groups that a process keeps in memory.

    Raises:
        InputError: there are no such files, rows or columns; or pyarrow is not installed.
        DatasetReadError: a file is none of its kind.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        columns: Sequence[str] | None = None,
        as_tables: bool = False,
        cached: int = 32,
    ) -> None:
        if cached < 1:
            raise errors.InputError(f"cached is {cached}; 1 row group or more is needed")
        self._files = discover(sources, columns)
        self._columns = None if columns is None else list(columns)
        self._as_tables, self._cached = as_tables, cached
        self._groups = [
            (file, group) for file in self._files for group in range(len(file.group_rows))
        ]
        self.blocks: Sequence[int] = array.array(
            "Q", (file.group_rows[group] for file, group in self._groups)
        )
        """Rows of each row group."""
        self._ends = array.array("Q", itertools.accumulate(self.blocks))
        if not len(self):
            raise errors.InputError(f"{self._files[0].path} and all others have no rows")
        self._reset()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Any:
        found = self.__getitems__([number])
        return found if self._as_tables else found[0]

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """Several rows, as DataLoader requests them: each row group is read once.

        Raises:
            IndexError: there is no such row.
            DatasetReadError: a file was changed, or a row group cannot be read.
        """
        if self._process != os.getpid():
            self._reset()
        located = sorted((*self._locate(number), at) for at, number in enumerate(numbers))
        tables = [
            self._group(block).take([row for _, row, _ in within])
            for block, within in itertools.groupby(located, operator.itemgetter(0))
        ]
        back = sorted(range(len(located)), key=lambda index: located[index][2])
        if self._as_tables:
            return import_pyarrow().concat_tables(tables).take(back)
        rows = list(itertools.chain.from_iterable(table.to_pylist() for table in tables))
        return [rows[index] for index in back]

    def __getstate__(self) -> dict[str, Any]:
        # Files that are open stay with the process; another one opens its own.
        return {**self.__dict__, "_group": None, "_open": None, "_process": 0}

    @property
    def fingerprint(self) -> str:
        """Of the files' names, sizes and footers, not of all contents.

        Footers say where columns lie and, in Parquet, their least and greatest values.
        """
        whole = hashlib.blake2b(digest_size=16)
        for file in self._files:
            whole.update(f"{file.name} {file.size} {file.digest}\n".encode())
        return whole.hexdigest()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._open = functools.lru_cache(_OPEN)(TableFile.open)
        self._group = functools.lru_cache(self._cached)(self._read)

    def _locate(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            message = f"row {number} of {len(self)}"
            raise IndexError(message)
        block = bisect.bisect_right(self._ends, number)
        return block, number - (self._ends[block] - self.blocks[block])

    def _read(self, block: int) -> Any:
        file, group = self._groups[block]
        opened = self._open(file)
        try:
            table = opened.read(group, self._columns).combine_chunks()
        except (import_pyarrow().ArrowException, OSError) as cause:
            end = self._ends[block]
            raise errors.DatasetReadError(
                f"{file.path}: row group {group} of {len(file.group_rows)}, rows "
                f"{end - self.blocks[block]} to {end - 1} of the data set, cannot be read: "
                f"{cause}; write the file again, or leave it out"
            ) from cause
        if len(table) != file.group_rows[group]:
            raise errors.DatasetReadError(
                f"{file.path}: row group {group} has {len(table)} rows, the file's footer says "
                f"{file.group_rows[group]}; write the file again, or leave it out"
            )
        return table
