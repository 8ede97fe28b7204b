# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tables and their versions; the store brings a database to VERSION when it first opens it.

A record is one JSON document; the columns beside it are only what is searched by, so that a new
field of RunRecord needs no migration. A change of the columns does: append a step to MIGRATIONS. A
step names its columns itself: RUNS is what they have come to, not what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from rover_kf import errors

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
    """Bring the database to VERSION; call it inside a transaction.

    Raises:
        HistoryUnavailable: a newer rover-kf wrote it.
    """
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
