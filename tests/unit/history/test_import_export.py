# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs as files, former layouts, and what is seen from other namespaces."""

from __future__ import annotations

import dataclasses

import pytest
import sqlalchemy as sa

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.jobs import Event
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.history import import_export, sql_schema
from rover_kf.history.store import SqlHistory


def record(uid="u1", namespace="team", **changes):
    made = RunRecord(
        uid=uid,
        signature=JobSignature(namespace, "digits", "PyTorchJob", "img:1", "python t.py", 1, 2),
        started_at=100.0,
        updated_at=200.0,
        outcome="succeeded",
        requested={"replicas": 2.0},
        peak={"cpu": 1.5},
        events=(Event("WorldFormed", 'two "nodes"\nand ünïcode', at=100.0),),
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def history(tmp_path):
    with SqlHistory(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


@pytest.fixture
def other(tmp_path):
    with SqlHistory(f"sqlite:///{tmp_path}/b.db") as opened:
        yield opened


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_runs_go_through_a_file(history, other, tmp_path, ending):
    """Equal on the other side; what was written later there stays; one namespace alone if asked."""
    history.upsert(record())
    history.upsert(record("u2", namespace="other"))
    file = tmp_path / f"runs.{ending}"
    assert import_export.export_runs(history, file) == 2
    newer = record(updated_at=300.0, verdict="newer")
    other.upsert(newer)
    assert import_export.import_runs(other, file) == 1
    assert (other.get("u1"), other.get("u2")) == (newer, record("u2", namespace="other"))
    assert import_export.export_runs(history, file, namespace="team") == 1
    assert not list(tmp_path.glob(".runs*"))


def test_files_that_cannot_be_used(history, tmp_path):
    """Another ending, no such file, no record: refused, nothing added."""
    history.upsert(record())
    with pytest.raises(errors.InputError, match="allowed"):
        import_export.export_runs(history, tmp_path / "runs.csv")
    with pytest.raises(errors.InputError, match="cannot be written"):
        import_export.export_runs(history, tmp_path / "no" / "runs.jsonl")
    for text in ("{", '{"uid": "u9"}'):
        (tmp_path / "bad.jsonl").write_text(codec.dumps(record("u8")).decode() + "\n" + text)
        with pytest.raises(errors.InputError, match="nothing was added"):
            import_export.import_runs(history, tmp_path / "bad.jsonl")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(errors.InputError, match="nothing was added"):
        import_export.import_runs(history, tmp_path / "bad.parquet")
    assert [run.uid for run in history.list()] == ["u1"]


def test_a_former_layout_is_brought_up(tmp_path):
    """A file of version 1, as it was written then: its runs are there, the new column is filled."""
    url = f"sqlite:///{tmp_path}/old.db"
    engine = sa.create_engine(url)
    old = record("old")
    with engine.begin() as connection:
        sql_schema.SCHEMA.create(connection)
        sql_schema.MIGRATIONS[0](connection)
        connection.execute(sql_schema.SCHEMA.insert().values(version=1))
        names = [column["name"] for column in sa.inspect(connection).get_columns("runs")]
        assert "accelerators" not in names
        connection.execute(
            sa.text(
                "INSERT INTO runs VALUES (:uid, :namespace, :name, :kind, :image, :command,"
                " :outcome, :started_at, :updated_at, :record)"
            ),
            {
                **{name: getattr(old.signature, name) for name in names[1:6]},
                "uid": old.uid,
                "outcome": old.outcome,
                "started_at": old.started_at,
                "updated_at": old.updated_at,
                "record": codec.dumps(old).decode(),
            },
        )
    with SqlHistory(url) as history:
        assert history.get("old") == old
        history.upsert(record("new"))
    with engine.begin() as connection:
        assert connection.execute(sa.select(sql_schema.RUNS.c.accelerators)).scalars().all() == [
            2,
            2,
        ]
    engine.dispose()


def test_runs_of_other_namespaces_are_seen_if_they_are_shared(tmp_path):
    """None by default; those that share theirs, or all; the own ones first."""
    url = f"sqlite:///{tmp_path}/h.db"
    with SqlHistory(url) as history:
        for namespace in ("team", "public", "private"):
            history.upsert(record(namespace, namespace=namespace, started_at=len(namespace)))
        asked = record().signature
        assert [run.uid for run in history.similar(asked)] == ["team"]
    with SqlHistory(url, shared=("public",)) as history:
        assert [run.uid for run in history.similar(asked)] == ["team", "public"]
    with SqlHistory(url, shared=("*",)) as history:
        found = [run.uid for run in history.similar(asked)]
        assert (found[0], set(found)) == ("team", {"team", "public", "private"})
