# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The SQL history on real SQLite files, also locked, damaged, full, newer and shared ones."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sqlite3
import threading

import pytest

from rover_kf import errors
from rover_kf.api.jobs import Event
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.history import sql_schema
from rover_kf.history.store import SqlHistory


def record(uid="u1", **changes):
    made = RunRecord(
        uid=uid,
        signature=JobSignature("team", "digits", "PyTorchJob", "img:1", "python t.py", 1, 0),
        started_at=100.0,
        updated_at=200.0,
        outcome="succeeded",
        requested={"replicas": 2.0},
        peak={},
        windows=(Throughput(100.0, 110.0, 2, 2, 10, 640, 1.0, 64.0),),
        events=(Event("WorldFormed", "2 nodes", at=100.0),),
        total_steps=10,
    )
    return dataclasses.replace(made, **changes)


def signed(**changes):
    return dataclasses.replace(record().signature, **changes)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/deep/down/history.db"


@pytest.fixture
def history(url):
    with SqlHistory(url) as opened:
        yield opened


def test_record_comes_back_whole(history):
    """What is written is read, field for field; writing again replaces."""
    history.upsert(record())
    assert history.get("u1") == record()
    history.upsert(record(outcome="failed", verdict="disk full"))
    assert history.get("u1").verdict == "disk full"
    assert len(history.list()) == 1
    assert history.get("other") is None


def test_records_outlive_the_process(url):
    """A second opening of the same file finds the run."""
    with SqlHistory(url) as first:
        first.upsert(record())
    with SqlHistory(url) as second:
        assert second.get("u1") == record()


def test_list_filters_and_orders(history):
    """Newest first, by namespace, name and outcome, at most as many as asked."""
    history.upsert(record("u1", started_at=1.0))
    history.upsert(record("u2", started_at=2.0, outcome="running"))
    history.upsert(record("u3", started_at=3.0, signature=signed(namespace="other")))
    history.upsert(record("u4", started_at=4.0, signature=signed(name="gpt")))

    def uids(**wanted):
        return [item.uid for item in history.list(**wanted)]

    assert uids() == ["u4", "u3", "u2", "u1"]
    assert uids(namespace="team") == ["u4", "u2", "u1"]
    assert uids(namespace="team", name="digits", outcome="running") == ["u2"]
    assert uids(limit=1) == ["u4"]


def test_similar_keeps_to_the_namespace_and_puts_the_likest_first(history):
    """Other namespaces and kinds never leak; the same command and image come first."""
    history.upsert(record("same", started_at=1.0))
    history.upsert(record("image", started_at=2.0, signature=signed(image="img:2")))
    history.upsert(record("script", started_at=3.0, signature=signed(command="python b.py")))
    history.upsert(record("foreign", started_at=9.0, signature=signed(namespace="other")))
    history.upsert(record("tf", started_at=9.0, signature=signed(kind="TFJob")))
    assert [r.uid for r in history.similar(signed())] == ["same", "image", "script"]
    assert [r.uid for r in history.similar(signed(), limit=1)] == ["same"]


def test_delete_and_retention(history):
    """A run can be forgotten; old ended runs go, running and new ones stay."""
    history.upsert(record("old", updated_at=10.0))
    history.upsert(record("running", updated_at=10.0, outcome="running"))
    history.upsert(record("new", updated_at=300.0))
    assert history.retain(newer_than=100.0) == 1
    assert {item.uid for item in history.list()} == {"running", "new"}
    assert history.delete("new")
    assert not history.delete("new")


def test_locked_database_is_unavailable_and_then_is_not(url, monkeypatch):
    """While another writer holds the file, writing is HistoryUnavailable; afterwards it works."""
    monkeypatch.setattr(sql_schema, "LOCK_SECONDS", 0.1)
    with SqlHistory(url) as history:
        history.upsert(record())
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.HistoryUnavailable, match="locked"):
            history.upsert(record("u2"))
        assert history.get("u1") == record()
        other.rollback()
        other.close()
        history.upsert(record("u2"))


def test_damaged_file_is_unavailable(tmp_path):
    """Bytes that are no database: HistoryUnavailable with the place, nothing overwritten."""
    path = tmp_path / "history.db"
    path.write_bytes(b"not a database at all" * 100)
    with SqlHistory(f"sqlite:///{path}") as history:
        with pytest.raises(errors.HistoryUnavailable, match=r"history\.db cannot be used"):
            history.upsert(record())
        with pytest.raises(errors.HistoryUnavailable):
            history.list()
    assert path.read_bytes().startswith(b"not a database")


def test_full_database_is_unavailable(history):
    """No page left: HistoryUnavailable, what was there is still read, and room mends it."""
    history.upsert(record())
    large = record("u2", events=tuple(Event("WorldFormed", f"{i}" * 200) for i in range(900)))
    with history._transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 12")
    with pytest.raises(errors.HistoryUnavailable, match="full"):
        history.upsert(large)
    assert history.get("u1") == record()
    with history._transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    history.upsert(large)
    assert history.get("u2") == large


def test_folder_that_cannot_be_made_is_unavailable(tmp_path):
    """A file stands where the folder should be: HistoryUnavailable that says what to check."""
    (tmp_path / "taken").write_text("")
    with (
        SqlHistory(f"sqlite:///{tmp_path}/taken/history.db") as history,
        pytest.raises(errors.HistoryUnavailable, match="writable"),
    ):
        history.get("u1")


def test_address_that_is_no_url_is_unavailable():
    """Nonsense for an address is told without a traceback of the library."""
    with SqlHistory("history.db") as history, pytest.raises(errors.HistoryUnavailable):
        history.get("u1")


def test_password_is_not_told():
    """The message of a failure does not show the database's password."""
    history = SqlHistory("postgresql+nodriver://rover:secret@db/history")
    with pytest.raises(errors.HistoryUnavailable) as caught:
        history.get("u1")
    assert "secret" not in str(caught.value)


def test_newer_schema_is_refused(url):
    """A database that a newer rover-kf wrote is left alone."""
    with SqlHistory(url) as history:
        history.upsert(record())
        with history._transaction() as connection:
            connection.exec_driver_sql("INSERT INTO schema_version VALUES (99)")
    with SqlHistory(url) as history, pytest.raises(errors.HistoryUnavailable, match="version 99"):
        history.get("u1")


def test_record_that_cannot_be_read_is_named(url):
    """A document that is no record any more is an error, not a wrong record."""
    with SqlHistory(url) as history:
        history.upsert(record())
        with history._transaction() as connection:
            connection.exec_driver_sql("UPDATE runs SET record = '{\"uid\": 7}'")
        with pytest.raises(errors.HistoryUnavailable, match=r"RunRecord\.uid"):
            history.get("u1")


def _write_many(url, name, count):
    with SqlHistory(url) as history:
        for i in range(count):
            history.upsert(record(f"{name}-{i}"))
            history.upsert(record("shared", verdict=f"{name}-{i}"))


def test_two_processes_write_one_history(url):
    """Two writers from the very first opening on: no record is lost, no error."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(url, n, 20)) for n in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    with SqlHistory(url) as history:
        assert len(history.list(limit=1000)) == 41


def test_threads_share_a_store(history):
    """Eight threads write through one store; all records are there."""
    threads = [threading.Thread(target=history.upsert, args=(record(f"u{i}"),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(history.list()) == 8
