# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet files, and whole files, in a real S3 server, by one address."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from rover_kf import ElasticDataLoader, FileDataset, TableRows, errors
from tests.support.servers.object_server import object_server, offer


def test_rows_come_from_an_object_store(tmp_path, monkeypatch):
    """Listed by name, read by row groups in spawned workers; a bucket that is not there is told."""
    with object_server(tmp_path / "server") as server:
        offer(server, monkeypatch)
        folder = server.bucket / "train"
        folder.mkdir()
        for file in range(3):
            table = pa.table({"number": range(100 * file, 100 * (file + 1))})
            parquet.write_table(table, folder / f"{file}.parquet", row_group_size=25)
        rows = TableRows("s3://checkpoints/train")
        assert list(rows.blocks) == [25] * 12
        assert rows.fingerprint == TableRows(folder).fingerprint
        assert rows[137] == {"number": 137}
        loader = ElasticDataLoader(
            rows, 60, rank=0, world_size=1, num_workers=1, multiprocessing_context="spawn"
        )
        found = [number for batch in loader for number in batch["number"].tolist()]
        assert sorted(found) == list(range(300))
        with pytest.raises(errors.InputError, match="s3://nosuch/train"):
            TableRows("s3://nosuch/train")


def test_whole_files_come_from_an_object_store(tmp_path, monkeypatch):
    """The same as from the folder; one that has other bytes by now, or is gone, is told by name."""
    with object_server(tmp_path / "server") as server:
        offer(server, monkeypatch)
        folder = server.bucket / "pictures"
        for number in range(40):
            (folder / f"{number % 4}").mkdir(parents=True, exist_ok=True)
            (folder / f"{number % 4}" / f"{number}.img").write_bytes(b"%d" % number)
        files = FileDataset("s3://checkpoints/pictures", decode=_number, endings=[".img"])
        local = FileDataset(folder, endings=[".img"])
        assert files.fingerprint == local.fingerprint
        assert files.classes == local.classes == ("0", "1", "2", "3")
        loader = ElasticDataLoader(
            files, 10, rank=0, world_size=1, num_workers=1, multiprocessing_context="spawn"
        )
        found = sorted(number for batch in loader for number in batch.tolist())
        assert found == list(range(40))
        names = [local[number].name for number in range(40)]
        (folder / "2" / "6.img").write_bytes(b"more")
        (folder / "3" / "7.img").unlink()
        with pytest.raises(errors.DatasetReadError, match=r"2/6.img was changed"):
            files[names.index("2/6.img")]
        with pytest.raises(errors.DatasetReadError, match=r"3/7.img cannot be read"):
            files[names.index("3/7.img")]


def _number(file):
    return int(file.content)
