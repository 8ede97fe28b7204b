# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy engines as the history needs them: SQLite by a write-ahead log, others by URL."""

from __future__ import annotations

import logging
import pathlib
import sqlite3
import urllib.parse
from typing import Any

import sqlalchemy as sa

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
