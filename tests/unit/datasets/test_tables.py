# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet and Arrow files as samples."""

from __future__ import annotations

import pickle
import sys

import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from torch.utils.data import DataLoader

from rover_kf import ElasticDataLoader, errors
from rover_kf.datasets.tables import TableRows


def _table(begin: int, end: int) -> pa.Table:
    numbers = list(range(begin, end))
    return pa.table({"number": numbers, "name": [f"row {number}" for number in numbers]})


@pytest.fixture
def folder(tmp_path):
    """Rows 0 to 69: Parquet files of 20 and 30 rows in groups of eight, one of Arrow, compressed or
    not, below; files that are none."""
    folder = tmp_path / "train"
    (folder / "z").mkdir(parents=True)
    options = {"row_group_size": 8, "write_page_checksum": True}
    parquet.write_table(_table(0, 20), folder / "a.parquet", **options)
    parquet.write_table(_table(20, 50), folder / "b.parquet", **options)
    feather.write_feather(
        _table(50, 60), folder / "c.feather", compression="uncompressed", chunksize=4
    )
    feather.write_feather(_table(60, 70), folder / "z" / "d.arrow", compression="lz4", chunksize=4)
    (folder / "_SUCCESS.parquet").touch()
    (folder / "readme.txt").touch()
    return folder


def test_rows_are_those_of_the_files(folder):
    """One by one, several in any order, in another process, and by column."""
    rows = TableRows(folder)
    assert len(rows) == 70
    assert list(rows.blocks) == [8, 8, 4, 8, 8, 8, 6, 4, 4, 2, 4, 4, 2]
    assert [rows[number]["number"] for number in range(70)] == list(range(70))
    for found in (rows, pickle.loads(pickle.dumps(rows)), TableRows(f"file://{folder}")):
        wanted = [69, 3, 50, 3, 21, 0]
        assert found.__getitems__(wanted) == [
            {"number": number, "name": f"row {number}"} for number in wanted
        ]
    table = TableRows(folder, columns=["name"], as_tables=True).__getitems__([30, 2, 61])
    assert table.to_pydict() == {"name": ["row 30", "row 2", "row 61"]}
    with pytest.raises(IndexError):
        rows[70]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_read_them(folder, way):
    """The parent has read already, and files are open in it."""
    rows = TableRows(folder, columns=["number"])
    assert rows[0] == {"number": 0}
    loader = ElasticDataLoader(
        rows, 16, rank=0, world_size=1, num_workers=2, multiprocessing_context=way, seed=1
    )
    found = [number for batch in loader for number in batch["number"].tolist()]
    assert sorted(found) == list(range(70))
    assert found != sorted(found)


def test_a_place_in_other_files_is_refused(folder):
    """As many rows; the checkpoint's fingerprint is of other footers."""
    loader = ElasticDataLoader(TableRows(folder), 16, rank=0, world_size=1)
    state = loader.state_dict()
    ElasticDataLoader(TableRows(folder), 16, rank=0, world_size=1).load_state_dict(state)
    parquet.write_table(_table(1, 21), folder / "a.parquet", row_group_size=8)
    again = ElasticDataLoader(TableRows(folder), 16, rank=0, world_size=1)
    with pytest.raises(errors.CheckpointError, match=r"fingerprint.*train on the same data"):
        again.load_state_dict(state)


def test_files_that_change_under_training_are_an_error(folder):
    """Rows would be others than those of the checkpoint."""
    rows = TableRows(folder)
    parquet.write_table(_table(1, 21), folder / "a.parquet", row_group_size=8)
    with pytest.raises(errors.DatasetReadError, match=r"a.parquet was changed"):
        rows[0]
    (folder / "b.parquet").unlink()
    with pytest.raises(errors.DatasetReadError, match=r"b.parquet cannot be read"):
        rows[20]


def test_a_damaged_row_group_is_named(folder):
    """A bit of it fell over: an error in the worker that reads it; other groups are read."""
    path = folder / "a.parquet"
    about = parquet.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    at = about.data_page_offset + about.total_compressed_size - 2
    data[at] ^= 255
    path.write_bytes(data)
    rows = TableRows(folder)
    assert rows[0]["number"] == 0
    with pytest.raises(
        errors.DatasetReadError, match=r"row group 1 of 3, rows 8 to 15 of the data"
    ):
        rows[8]
    with pytest.raises(errors.DatasetReadError, match=r"a.parquet: row group 1 of 3"):
        list(DataLoader(rows, 8, num_workers=1, collate_fn=list))


@pytest.mark.parametrize("name", ["a.parquet", "c.feather"])
def test_files_that_are_torn_are_named(folder, name):
    """Before training."""
    whole = (folder / name).read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:size])
        with pytest.raises(errors.DatasetReadError, match=name):
            TableRows(folder)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: TableRows(folder / "none"), "none"),
        (lambda _: TableRows([]), "no files"),
        (lambda _: TableRows("nosuch://bucket"), "nosuch"),
        (lambda folder: TableRows(folder, columns=["label"]), "no column label; it has number"),
        (lambda folder: TableRows(folder, cached=0), "cached is 0"),
        (lambda folder: TableRows(folder.parent / "empty"), "no files that end with"),
        (lambda folder: TableRows(folder.parent / "rowless"), "no rows"),
    ],
)
def test_bad_input_is_refused(folder, made, words):
    """Before training, with what to do."""
    for name in ("empty", "rowless"):
        (folder.parent / name).mkdir()
    parquet.write_table(_table(0, 0), folder.parent / "rowless" / "a.parquet")
    with pytest.raises(errors.InputError, match=words):
        made(folder)


def test_pyarrow_is_asked_for_by_name(folder, monkeypatch):
    """Who has not installed it is told what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.InputError, match=r"pip install 'rover-kf\[data\]'"):
        TableRows(folder)
