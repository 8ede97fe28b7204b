# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The history in SQL: a SQLite file by default, PostgreSQL by URL; satisfies HistoryStore.

Opened at first use and again after a failure, so that a database which is away for a while
costs records of that while and nothing else. Every failure is a HistoryUnavailable.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.history import sql_schema
from rover_kf.history.remote import RemoteHistory

CANDIDATES = 500
"""Newest runs of a namespace among which similar ones are looked for."""

MAX_ACCELERATORS = (1 << 31) - 1
"""What the column holds."""

ALL = "*"
"""Shared by every namespace."""


class SqlHistory:
    """A history behind a SQLAlchemy URL; safe to share between threads. Raises as HistoryStore.

    Usage::

        with SqlHistory("sqlite:////var/lib/rover-kf/history.db") as history:
            history.upsert(record)

    Args:
        url: of SQLAlchemy.
        shared: namespaces whose runs those of every other one may learn from; ``*`` is all. Without
            it no run is seen from another namespace.
    """

    def __init__(self, url: str, *, shared: Collection[str] = ()) -> None:
        self._url = url
        self._shared = frozenset(shared)
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self.available = True
        """Whether the last use of it went well."""
        self.failures = 0
        """Uses that did not, since the start."""

    def __enter__(self) -> SqlHistory:  # noqa: PYI034 - Self is not in Python 3.10's typing
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens the database again."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def upsert(self, record: RunRecord) -> None:
        """Write the record, replacing the one of the same uid."""
        row = to_row(record)
        change = sa.update(sql_schema.RUNS).where(sql_schema.RUNS.c.uid == record.uid).values(row)
        with self._transaction() as connection:
            if connection.execute(change).rowcount:
                return
            try:
                with connection.begin_nested():
                    connection.execute(sa.insert(sql_schema.RUNS).values(row))
            except exc.IntegrityError:
                # Another process wrote the same run between the two statements.
                connection.execute(change)

    def get(self, uid: str) -> RunRecord | None:
        """The record of that uid; None if there is none."""
        found = self._read(sa.select(sql_schema.RUNS.c.record).where(sql_schema.RUNS.c.uid == uid))
        return found[0] if found else None

    def similar(self, signature: JobSignature, limit: int = 50) -> tuple[RunRecord, ...]:
        """Runs of the same kind and of the same namespace or one that shares its runs.

        Same command, name, image and accelerators come first, then the own namespace, then newest.
        """
        runs = sql_schema.RUNS
        query = (
            sa.select(runs.c.record)
            .where(self._visible_from(signature.namespace), runs.c.kind == signature.kind)
            .order_by(
                sa.case((runs.c.command == signature.command, 0), else_=1),
                sa.case((runs.c.name == signature.name, 0), else_=1),
                sa.case((runs.c.image == signature.image, 0), else_=1),
                sa.case((runs.c.accelerators == signature.accelerators, 0), else_=1),
                sa.case((runs.c.namespace == signature.namespace, 0), else_=1),
                runs.c.started_at.desc(),
            )
            .limit(min(limit, CANDIDATES))
        )
        return self._read(query)

    def list(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        outcome: str | None = None,
        visible_from: str | None = None,
        limit: int = 100,
    ) -> tuple[RunRecord, ...]:
        """Newest runs first, filtered by what is given."""
        runs = sql_schema.RUNS
        query = sa.select(runs.c.record).order_by(runs.c.started_at.desc()).limit(limit)
        if visible_from is not None:
            query = query.where(self._visible_from(visible_from))
        for column, wanted in ((runs.c.namespace, namespace), (runs.c.name, name)):
            query = query if wanted is None else query.where(column == wanted)
        return self._read(query if outcome is None else query.where(runs.c.outcome == outcome))

    def delete(self, uid: str) -> bool:
        """Forget a run; False if there was none."""
        with self._transaction() as connection:
            gone = connection.execute(
                sa.delete(sql_schema.RUNS).where(sql_schema.RUNS.c.uid == uid)
            )
        return bool(gone.rowcount)

    def retain(self, *, newer_than: float) -> int:
        """Forget runs that ended and were last written before that time; returns how many."""
        runs = sql_schema.RUNS
        old = sa.delete(runs).where(runs.c.outcome != "running", runs.c.updated_at < newer_than)
        with self._transaction() as connection:
            return connection.execute(old).rowcount

    def _visible_from(self, namespace: str) -> sa.ColumnElement[bool]:
        """Which runs may be learned from in a namespace."""
        if ALL in self._shared:
            return sa.true()
        return sql_schema.RUNS.c.namespace.in_(sorted({namespace, *self._shared}))

    def _read(self, query: sa.Select[Any]) -> tuple[RunRecord, ...]:
        with self._transaction() as connection:
            documents = connection.execute(query).scalars().all()
        try:
            return tuple(codec.decode(RunRecord, document) for document in documents)
        except errors.ProtocolError as cause:
            message = (
                f"the history at {self._redacted_url()} holds a record that cannot be read: {cause}"
            )
            raise errors.HistoryUnavailable(message) from cause

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._open().begin() as connection:
                yield connection
            self.available = True
        # ValueError: a stored document that is no JSON any more; OSError: no folder for the file.
        except (exc.SQLAlchemyError, OSError, ValueError, ImportError) as cause:
            self.available, self.failures = False, self.failures + 1
            message = (
                f"the history at {self._redacted_url()} cannot be used: {cause}; "
                "check that it is reachable, writable and not full"
            )
            raise errors.HistoryUnavailable(message) from cause

    def _open(self) -> sa.Engine:
        with self._lock:
            if self._engine is None:
                engine = sql_schema.make_engine(self._url)
                try:
                    with engine.begin() as connection:
                        sql_schema.lock_migrations(connection)
                        sql_schema.migrate(connection)
                except BaseException:  # whatever it is: nobody else knows of its connections
                    engine.dispose()
                    raise
                self._engine = engine
            return self._engine

    def _redacted_url(self) -> str:
        """The URL without its password."""
        try:
            return sa.make_url(self._url).render_as_string(hide_password=True)
        except exc.ArgumentError:
            return "an address that is no URL"


def to_row(record: RunRecord) -> dict[str, Any]:
    """Return the document of a record, with the columns that one searches by."""
    signed = ("namespace", "name", "kind", "image", "command")
    return {
        **{name: getattr(record, name) for name in ("uid", "outcome", "started_at", "updated_at")},
        **{name: getattr(record.signature, name) for name in signed},
        "accelerators": max(min(record.signature.accelerators, MAX_ACCELERATORS), 0),
        "record": codec.encode(record),
    }


def open_history(url: str, *, shared: Collection[str] = ()) -> SqlHistory | RemoteHistory:
    """Return the history at an address; nothing is opened before it is used.

    It is ``sqlite:///…``, ``postgresql+psycopg://…``, or a controller's ``https://…``, which
    decides itself what is shared.
    """
    if url.startswith(("http://", "https://")):
        return RemoteHistory(url)
    return SqlHistory(url, shared=shared)
