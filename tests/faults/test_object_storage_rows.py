# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of Parquet files in a real S3 server, by one address."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from rover_kf import ElasticDataLoader, TableRows, errors
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
