# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A history's runs as files: JSON lines, one record a line, or Parquet for tools that read tables.

JSON lines hold a record whole and are read by any later version. Parquet holds the same document in
a column beside those that one filters by; it needs pyarrow, which is installed with the extra
``parquet``.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.records import RunRecord
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.history.store import to_row

MAX_RUNS = 1_000_000
_COLUMNS = ("uid", "namespace", "name", "kind", "outcome", "started_at", "updated_at")
LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet",)


def export_runs(history: HistoryStore, path: pathlib.Path, *, namespace: str | None = None) -> int:
    """Write runs to a file, whole or not at all, in the form of its ending; return how many.

    Raises:
        InputError: another ending, or the file cannot be written.
        HistoryUnavailable: the history cannot be read.
    """
    form = _file_format(path)
    records = history.list(namespace=namespace, limit=MAX_RUNS)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if form == "lines":
            lines = (json.dumps(codec.encode(record)) + "\n" for record in records)
            aside.write_text("".join(lines), encoding="utf-8")
        else:
            _write_table(records, aside)
        aside.replace(path)
    except OSError as cause:
        aside.unlink(missing_ok=True)
        raise errors.InputError(f"{path} cannot be written: {cause}") from cause
    return len(records)


def import_runs(history: HistoryStore, path: pathlib.Path, *, namespace: str | None = None) -> int:
    """Add the runs of a file to a history; return how many.

    A run that is there already is replaced if the file's was written later.

    Raises:
        InputError: no such file, another form, or a record that cannot be read; nothing was added.
        HistoryUnavailable: the history cannot be written.
    """
    form = _file_format(path)
    try:
        documents = list(_lines(path) if form == "lines" else _table(path))
        records = [codec.decode(RunRecord, document) for document in documents]
    except (OSError, ValueError, RecursionError, errors.ProtocolError) as cause:
        raise errors.InputError(f"{path} cannot be read: {cause}; nothing was added") from cause
    added = 0
    for record in records:
        if namespace is not None and record.signature.namespace != namespace:
            continue
        known = history.get(record.uid)
        if known is None or known.updated_at < record.updated_at:
            history.upsert(record)
            added += 1
    return added


def _file_format(path: pathlib.Path) -> str:
    if path.suffix in LINES:
        return "lines"
    if path.suffix in PARQUET:
        return "table"
    raise errors.InputError(f"{path} ends with {path.suffix!r}; allowed: .jsonl or .parquet")


def _lines(path: pathlib.Path) -> Iterator[object]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _write_table(records: tuple[RunRecord, ...], path: pathlib.Path) -> None:
    pyarrow = _pyarrow()
    rows = [to_row(record) for record in records]
    columns: dict[str, list[object]] = {name: [row[name] for row in rows] for name in _COLUMNS}
    columns["record"] = [json.dumps(row["record"]) for row in rows]
    pyarrow.parquet.write_table(pyarrow.table(columns), str(path))


def _table(path: pathlib.Path) -> Iterator[object]:
    found = _pyarrow().parquet.read_table(str(path), columns=["record"])
    for text in found.column("record").to_pylist():
        yield json.loads(text)


def _pyarrow() -> Any:
    try:
        # Only here: nobody else needs it.
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as cause:
        message = "Parquet needs pyarrow: pip install 'rover-kf[parquet]'; .jsonl needs nothing"
        raise errors.InputError(message) from cause
