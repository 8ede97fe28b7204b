# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Engines, tables and their versions; the store brings a database to VERSION when it opens it.

SQLite has a write-ahead log. A record is one JSON document; the columns beside it are only what is
searched by, so that a new field of RunRecord needs no migration. A change of the columns does:
append a step to MIGRATIONS. A step names its columns itself: RUNS is what they have come to, not
what they were.
"""

from __future__ import annotations

import logging
import pathlib
import sqlite3
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from rover_kf import errors

LOG = logging.getLogger(__name__)

MIGRATION_LOCK = 0x726F766572
"""Key of PostgreSQL's advisory lock around migrations."""

LOCK_SECONDS = 10.0
"""How long a SQLite writer waits for another one."""


def make_engine(url: str) -> sa.Engine:
    """An engine for the URL; nothing is connected yet.

    Raises:
        SQLAlchemyError: it is no URL.
        OSError: a file's folder cannot be made.
        ImportError: the database's driver is not installed.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_pre_ping=True)
    if parsed.database and parsed.database != ":memory:":
        pathlib.Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(parsed, connect_args={"timeout": LOCK_SECONDS})
    sa.event.listen(engine, "connect", _write_ahead)
    return engine


def _parsed(url: str) -> sa.URL:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return parsed
    # Not all versions of SQLAlchemy take a path's escapes back.
    file = url.partition("///")[2].partition("?")[0]
    return parsed.set(database=urllib.parse.unquote(file))


def lock_migrations(connection: sa.Connection) -> None:
    """Let one process at a time make or migrate the tables, until its transaction ends."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))


def _write_ahead(connection: Any, _: object) -> None:
    """Readers and the one writer do not wait for each other; a killed writer loses nothing."""
    cursor = connection.cursor()
    try:
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError:
        # Another process is making the switch at this moment; either mode is safe.
        LOG.info("the history's journal mode is being changed by another process")
    finally:
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()


METADATA = sa.MetaData()

RUNS = sa.Table(
    "runs",
    METADATA,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("namespace", sa.String(253), nullable=False),
    sa.Column("name", sa.String(253), nullable=False),
    sa.Column("kind", sa.String(63), nullable=False),
    sa.Column("image", sa.Text, nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
    sa.Column("record", sa.JSON, nullable=False),
    sa.Column("accelerators", sa.Integer, nullable=False, server_default="0"),
)

SCHEMA = sa.Table("schema_version", METADATA, sa.Column("version", sa.Integer, primary_key=True))


def _first(connection: sa.Connection) -> None:
    """The table and what it is searched by."""
    layout = sa.MetaData()
    text, number = sa.Text, sa.Float
    runs = sa.Table(
        "runs",
        layout,
        sa.Column("uid", sa.String(64), primary_key=True),
        sa.Column("namespace", sa.String(253), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("kind", sa.String(63), nullable=False),
        *(sa.Column(name, text, nullable=False) for name in ("image", "command")),
        sa.Column("outcome", sa.String(16), nullable=False),
        *(sa.Column(name, number, nullable=False) for name in ("started_at", "updated_at")),
        sa.Column("record", sa.JSON, nullable=False),
        sa.Index("runs_by_job", "namespace", "name"),
        sa.Index("runs_by_age", "namespace", "kind", "started_at"),
        sa.Index("runs_by_outcome", "outcome", "updated_at"),
    )
    runs.create(connection, checkfirst=True)


def _second(connection: sa.Connection) -> None:
    """Accelerators of a replica, and an index for runs of all namespaces that share theirs."""
    connection.exec_driver_sql(
        "ALTER TABLE runs ADD COLUMN accelerators INTEGER DEFAULT 0 NOT NULL"
    )
    connection.exec_driver_sql("CREATE INDEX runs_by_kind ON runs (kind, started_at)")
    for uid, document in connection.execute(sa.select(RUNS.c.uid, RUNS.c.record)).all():
        signature = document.get("signature") or {}
        count = int(signature.get("accelerators") or 0)
        if count:
            found = sa.update(RUNS).where(RUNS.c.uid == uid).values(accelerators=count)
            connection.execute(found)


MIGRATIONS: Sequence[Callable[[sa.Connection], None]] = (_first, _second)
"""Step i brings a database from version i to i + 1."""

VERSION = len(MIGRATIONS)


def migrate(connection: sa.Connection) -> None:
    """Bring the database to VERSION in a transaction; a newer one is HistoryUnavailable."""
    SCHEMA.create(connection, checkfirst=True)
    found = connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar() or 0
    if found > VERSION:
        raise errors.HistoryUnavailable(
            f"the history has schema version {found}, this rover-kf knows {VERSION}; "
            "use a newer rover-kf or another history"
        )
    for version in range(found, VERSION):
        MIGRATIONS[version](connection)
        connection.execute(SCHEMA.insert().values(version=version + 1))
