# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet and Arrow files as samples, read by row groups, from disks and object stores."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from rover_kf import errors
from rover_kf.datasets import arrow_folders, table_files
from rover_kf.datasets.block_cache import BlockCache
from rover_kf.datasets.block_reader import BlockReader
from rover_kf.datasets.files import Sources

_OPEN = 8
"""Files that a process keeps open."""


class TableRows(BlockReader[Any]):
    """Each row of each file, as a dict by column. Needs pyarrow.

    ::

        rows = TableRows("s3://bucket/train", columns=["pixels", "label"])
        loader = ElasticDataLoader(rows, batch_size=256, num_workers=2)

    Args:
        sources: files that end with .parquet, .arrow or .feather, or folders of them; or one
            address that pyarrow knows (s3://, gs://, hdfs://).
        columns: that are read; none: all.
        as_tables: a batch is one pyarrow.Table, which ``collate_fn`` gets, in place of dicts: for
            who makes tensors of columns. Reading a single row gives a table, too.
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
        cached: int = 24,
    ) -> None:
        self._arrow = arrow_folders.import_pyarrow()
        self._files = table_files.discover(sources, columns)
        self._columns = None if columns is None else list(columns)
        self._as_tables = as_tables
        self._groups = [
            (file, group) for file in self._files for group in range(len(file.group_rows))
        ]
        super().__init__([file.group_rows[group] for file, group in self._groups], cached)
        if not len(self):
            raise errors.InputError(f"{self._files[0].path} and all others have no rows")

    def __getitem__(self, number: int) -> Any:
        found = self.__getitems__([number])
        return found if self._as_tables else found[0]

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """Several rows, as DataLoader asks for them: each row group is looked at once.

        Raises:
            IndexError: there is no such row.
            DatasetReadError: a file was changed, or a row group cannot be read.
        """
        places = sorted((*self._locate(number), at) for at, number in enumerate(numbers))
        tables, came = [], []
        for block, of_block in itertools.groupby(places, lambda position: position[0]):
            within = list(of_block)
            tables.append(self._cached_block(block).take([row for _, row, _ in within]))
            came += [at for *_, at in within]
        if self._as_tables:
            back = sorted(range(len(came)), key=came.__getitem__)
            return self._arrow.concat_tables(tables).take(back)
        rows = itertools.chain.from_iterable(table.to_pylist() for table in tables)
        return [row for _, row in sorted(zip(came, rows, strict=True), key=lambda pair: pair[0])]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_open": None, "_arrow": None}

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
        super()._reset()
        self._arrow = arrow_folders.import_pyarrow()
        self._open = BlockCache(lambda number: self._files[number].open(), _OPEN)

    def _read(self, block: int) -> Any:
        file, group = self._groups[block]
        opened = self._open.get(file.number)
        try:
            table = opened.read(group, self._columns).combine_chunks()
        except (self._arrow.ArrowException, OSError) as cause:
            raise errors.DatasetReadError(
                f"{file.path}: row group {group} of {len(file.group_rows)}, {self._rows(block)} of "
                f"the data set, cannot be read: {cause}; write the file again, or leave it out"
            ) from cause
        if len(table) != file.group_rows[group]:
            raise errors.DatasetReadError(
                f"{file.path}: row group {group} has {len(table)} rows, the file's footer says "
                f"{file.group_rows[group]}; write the file again, or leave it out"
            )
        return table

    def _rows(self, block: int) -> str:
        end = self._ends[block]
        return f"rows {end - self._sizes[block]} to {end - 1}"
