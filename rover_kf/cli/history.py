# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf history``: what past runs showed, and its files."""

from __future__ import annotations

import json
import pathlib
import time

import click

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.cli import job_tables
from rover_kf.cli.options import ONE_NAMESPACE, PATH, ConnectionOptions
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.history import import_export


@click.group()
def history() -> None:
    """Look at recorded runs, write them to a file, add them from one."""


@history.command("list")
@ONE_NAMESPACE
@click.option("--job", help="Only of this job.")
@click.option("--limit", default=20, show_default=True)
@FORMAT
@click.pass_obj
def list_runs(
    connection: ConnectionOptions, namespace: str | None, job: str | None, limit: int, output: str
) -> None:
    """List runs, newest first."""
    with connection.embedded() as rover:
        found = rover.history.list(namespace=namespace, name=job, limit=limit)
    print_value(found, output, job_tables.run_table(found))


@history.command("show")
@click.argument("run")
@click.pass_obj
def show_run(connection: ConnectionOptions, run: str) -> None:
    """Print one run's record as JSON; RUN is its id or the beginning of it."""
    with connection.embedded() as rover:
        found = [item for item in rover.history.list(limit=10_000) if item.uid.startswith(run)]
    if len(found) != 1:
        raise errors.InputError(
            f"{run!r} names {len(found)} runs; allowed: the beginning of exactly one id of "
            "rover-kf history list"
        )
    click.echo(json.dumps(codec.encode(found[0]), indent=2))


@history.command("export")
@click.argument("file", type=PATH)
@ONE_NAMESPACE
@click.pass_obj
def export(connection: ConnectionOptions, file: pathlib.Path, namespace: str | None) -> None:
    """Write runs to FILE: JSON lines (.jsonl) or Parquet (.parquet)."""
    with connection.embedded() as rover:
        count = import_export.export_runs(rover.history, file, namespace=namespace)
    click.echo(f"{count} runs written to {file}")


@history.command("import")
@click.argument("file", type=PATH)
@ONE_NAMESPACE
@click.pass_obj
def add(connection: ConnectionOptions, file: pathlib.Path, namespace: str | None) -> None:
    """Add the runs of FILE; one that is there already stays if it was written later."""
    with connection.embedded() as rover:
        count = import_export.import_runs(rover.history, file, namespace=namespace)
    click.echo(f"{count} runs of {file} added")


@history.command("prune")
@click.option("--days", type=click.FloatRange(0, min_open=True), required=True, help="To keep.")
@click.pass_obj
def prune(connection: ConnectionOptions, days: float) -> None:
    """Forget runs that ended more than so many days ago."""
    with connection.embedded() as rover:
        count = rover.history.retain(newer_than=time.time() - days * 86400)
    click.echo(f"{count} runs forgotten")
