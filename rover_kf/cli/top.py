# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf top``: all jobs at work, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rover_kf.cli import job_tables
from rover_kf.cli.live_view import LiveViewPages, serve
from rover_kf.cli.options import ONE_NAMESPACE, with_client
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.client import Progress, RoverClient
from rover_kf.system.signals import StopSignals

PORT = 7480
_PAUSE_SECONDS = 0.1


@click.command()
@ONE_NAMESPACE
@click.option("-a", "--all", "every", is_flag=True, help="Also jobs that have ended.")
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0.2))
@click.option("--once", is_flag=True, help="Look once; so it does where no terminal is.")
@click.option("--web", is_flag=True, help="Serve a live page for a browser of this machine.")
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Of --web, on 127.0.0.1; 0: any that is free.",
)
@FORMAT
@with_client
def top(
    rover: RoverClient,
    namespace: str | None,
    every: bool,
    seconds: float,
    once: bool,
    web: bool,
    port: int,
    output: str,
) -> None:
    """Show where all jobs stand, until Ctrl-C: steps, throughput, checkpoints, goodput."""
    console = Console()
    if web:
        _serve(LiveViewPages(rover, namespace=namespace, every=every, seconds=seconds), port)
        return
    if once or output != "table" or not console.is_terminal:
        found = collect_progress(rover, namespace, every=every)
        print_value(found, output, progress_table(found))
        return
    with StopSignals(exit_on_second=True) as interrupts, Live(console=console, screen=True) as live:
        while not interrupts.code:
            live.update(
                progress_table(collect_progress(rover, namespace, every=every)), refresh=True
            )
            again = time.monotonic() + seconds
            while not interrupts.code and time.monotonic() < again:
                time.sleep(_PAUSE_SECONDS)


def _serve(pages: LiveViewPages, port: int) -> None:
    """Until Ctrl-C or SIGTERM."""
    with StopSignals(exit_on_second=True) as interrupts, serve(pages.respond, port) as address:
        click.echo(f"{address} shows the jobs until Ctrl-C")
        while not interrupts.code:
            time.sleep(_PAUSE_SECONDS)


def collect_progress(
    rover: RoverClient, namespace: str | None, *, every: bool
) -> tuple[Progress, ...]:
    """Progress of the jobs, those that have not ended first."""
    jobs = sorted(rover.list(namespace), key=lambda job: (job.finished, job.key))
    return tuple(rover.progress(job.key) for job in jobs if every or not job.finished)


def progress_table(jobs: Sequence[Progress]) -> Table:
    """One job a row."""
    made = Table(*job_tables.COLUMNS, box=None, caption=None if jobs else "no job is at work")
    for item in jobs:
        namespace, job, phase, *others = job_tables.status_cells(item)
        made.add_row(namespace, job, Text(phase, style=_style(item)), *others)
    return made


def _style(item: Progress) -> str:
    if job_tables.has_failed(item):
        return "red"
    return "green" if item.activity == "training" else "yellow"
