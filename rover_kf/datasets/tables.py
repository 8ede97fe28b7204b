# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet and Arrow files as samples: pyarrow reads them, row groups are the blocks."""

from __future__ import annotations

import array
import bisect
import functools
import hashlib
import itertools
import operator
import os
from collections.abc import Sequence
from typing import Any

from rover_kf import errors
from rover_kf.datasets import table_files
from rover_kf.datasets.table_files import Sources

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
        self._files = table_files.discover(sources, columns)
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
            return table_files.import_pyarrow().concat_tables(tables).take(back)
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
        self._open = functools.lru_cache(_OPEN)(table_files.TableFile.open)
        self._group = functools.lru_cache(self._cached)(self._read)

    def _locate(self, number: int) -> tuple[int, int]:
        """Find the row group of a row, and the row's place in it."""
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
        except (table_files.import_pyarrow().ArrowException, OSError) as cause:
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
