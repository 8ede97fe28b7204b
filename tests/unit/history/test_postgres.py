# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The SQL history on a real PostgreSQL."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import pathlib
import shutil
import tempfile

import pytest
import sqlalchemy as sa

from rover_kf import errors
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.history import sql_schema
from rover_kf.history.store import SqlHistory
from tests.support.servers.postgres_server import postgres, programs
from tests.support.waiting import eventually

OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"


@pytest.fixture(scope="module")
def url():
    if programs() is None and "CI" not in os.environ:
        pytest.skip("no PostgreSQL here; python3 tests/cluster/testcluster/packages.py")
    # A test's own folder is too deep for a socket's address, and closed to other accounts.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rover-pg-"))
    try:
        with postgres(folder) as address:
            yield address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def empty(url):
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS runs, schema_version")
    yield url
    engine.dispose()


def record(uid="u1", **changes):
    made = RunRecord(
        uid=uid,
        signature=JobSignature("team", "digits", "PyTorchJob", "img:1", "python t.py", 1, 0),
        started_at=100.0,
        updated_at=200.0,
        outcome="succeeded",
        requested={"replicas": 2.0},
        peak={"memory": 1e9},
        windows=(Throughput(100.0, 110.0, 2, 2, 10, 640, 1.0, 64.0),),
    )
    return dataclasses.replace(made, **changes)


def test_records_come_back_from_postgresql(empty):
    """Written, replaced, listed, found alike, forgotten; another opening sees them."""
    with SqlHistory(empty) as history:
        history.upsert(record())
        history.upsert(record(verdict="disk full", outcome="failed"))
        history.upsert(record("u2", updated_at=1000.0, started_at=900.0))
        assert history.get("u1").verdict == "disk full"
        assert [run.uid for run in history.list()] == ["u2", "u1"]
        assert [run.uid for run in history.similar(record().signature)] == ["u2", "u1"]
    with SqlHistory(empty) as again:
        assert again.get("u2") == record("u2", updated_at=1000.0, started_at=900.0)
        assert again.retain(newer_than=500.0) == 1
        assert again.delete("u2")
        assert again.list() == ()


def test_a_former_layout_is_brought_up_in_postgresql(empty):
    """A database of version 1 keeps its runs and gets the new column filled."""
    engine = sa.create_engine(empty)
    old = record("old", signature=dataclasses.replace(record().signature, accelerators=4))
    with SqlHistory(empty) as history:
        history.upsert(old)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX runs_by_kind")
        connection.exec_driver_sql("ALTER TABLE runs DROP COLUMN accelerators")
        connection.exec_driver_sql("DELETE FROM schema_version WHERE version > 1")
    with SqlHistory(empty) as history:
        assert history.get("old") == old
    with engine.begin() as connection:
        assert connection.execute(sa.select(sql_schema.RUNS.c.accelerators)).scalar() == 4
        versions = connection.execute(sa.select(sql_schema.SCHEMA.c.version)).scalars().all()
        assert sorted(versions) == list(range(1, sql_schema.VERSION + 1))
    engine.dispose()


def test_many_writers_open_an_empty_postgresql_at_once(empty):
    """Eight stores migrate and write the same run side by side: one table, nine runs."""

    def work(number):
        with SqlHistory(empty) as history:
            history.upsert(record(f"u-{number}"))
            history.upsert(record("shared", verdict=str(number)))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    with SqlHistory(empty) as history:
        assert len(history.list()) == 9


def _others(engine):
    """How many connections there are beside this one."""
    with engine.begin() as connection:
        return connection.exec_driver_sql(f"SELECT count(*) {OTHERS}").scalar()


def test_a_postgresql_that_goes_is_told_and_used_again(empty):
    """Its connections cut: the next use opens new ones; a server that is not there is told."""
    engine = sa.create_engine(empty)
    with SqlHistory(empty) as history:
        history.upsert(record())
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {OTHERS}")
        # The server only signals them: one that is not yet cut may be cut in the next request.
        eventually(lambda: not _others(engine), what="the connections are cut")
        assert history.get("u1") == record()
        assert history.available
    engine.dispose()
    away = SqlHistory("postgresql+psycopg://rover:secret@/postgres?host=/no/such/folder")
    with away, pytest.raises(errors.HistoryUnavailable) as caught:
        away.get("u1")
    assert "secret" not in str(caught.value)
    assert (away.available, away.failures) == (False, 1)
