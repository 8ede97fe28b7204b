# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Verbs of a job's life: submit, list, watch, status, scale, logs, events, report, delete."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator

import click
from rich.console import Console
from rich.text import Text

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.jobs import JobKey
from rover_kf.cli import job_tables
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.cli.patch import DRY_RUN, OF_JOB, print_change_diff, print_patch_diff
from rover_kf.client import Progress, RoverClient, patches
from rover_kf.client.job_name import parse_name
from rover_kf.client.progress.data_progress import format_data_lines
from rover_kf.client.progress.progress_display import ProgressDisplay
from rover_kf.client.progress.progress_text import (
    format_event,
    format_goodput,
    format_progress,
)
from rover_kf.cluster.local import LocalCluster
from rover_kf.reconcilers.foreground import run_foreground as reconcile

NAME = click.argument("name")
NAMESPACE = click.option("-n", "--namespace", default="default", show_default=True)


@click.command()
@click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))
@click.option("--inject/--no-inject", default=True, help="Patch the job before it is created.")
@DRY_RUN
@click.pass_obj
def submit(connection: ConnectionOptions, file: pathlib.Path, inject: bool, dry_run: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Create a job on the cluster and return."""
    with connection.client() as rover:
        if dry_run:
            print_patch_diff(rover, file)
            return
        if isinstance(rover.cluster, LocalCluster):
            raise errors.InputError(
                "an embedded job ends with its command: use rover-kf run, or --on kubernetes"
            )
        job = rover.submit(file, inject=inject)
        click.echo(f"{job.key} created")


@click.command("list")
@click.option("-n", "--namespace", help="Only of this namespace.")
@FORMAT
@click.pass_obj
def list_jobs(connection: ConnectionOptions, namespace: str | None, output: str) -> None:
    """List labelled jobs.

    A TFJob is told, and called by the other verbs, as tfjob/NAME.
    """
    with connection.client() as rover:
        found = rover.list(namespace)
        print_value(found, output, job_tables.job_table(found))


@click.command()
@NAME
@NAMESPACE
@click.option(
    "--reconcile/--look-only", "acting", default=False, help="Also decide, scale and record."
)
@click.pass_obj
def watch(connection: ConnectionOptions, name: str, namespace: str, acting: bool) -> int:  # noqa: FBT001 - click passes flags so
    """Show a job's progress until it ends; with --reconcile do a controller's work for it."""
    key = parse_name(namespace, name)
    with connection.client() as rover:
        stop = threading.Event()
        worker = _start_reconciler(rover, key, stop) if acting else None
        try:
            with ProgressDisplay(Console()) as screen:
                for progress in rover.watch(key):
                    screen.show(progress)
        finally:
            stop.set()
            if worker is not None:
                worker.join()
        return 0 if progress.phase == "Succeeded" else 1


def _start_reconciler(rover: RoverClient, key: JobKey, stop: threading.Event) -> threading.Thread:
    arguments = {"stop": stop}
    thread = threading.Thread(
        target=reconcile, args=(rover.cluster, key, rover.history), kwargs=arguments
    )
    thread.start()
    return thread


@click.command()
@NAME
@NAMESPACE
@click.option("--json", "as_json", is_flag=True, help="Print the coordinator's whole answer.")
@FORMAT
@click.pass_obj
def status(
    connection: ConnectionOptions,
    name: str,
    namespace: str,
    as_json: bool,  # noqa: FBT001 - click passes flags so
    output: str,
) -> None:
    """Say where a job stands now."""
    key = parse_name(namespace, name)
    with connection.client() as rover:
        if as_json:
            click.echo(codec.dumps(rover.status(key)).decode())
        else:
            progress = rover.progress(key)
            print_value(progress, output, *(Text(line) for line in _status_lines(progress)))


def _status_lines(progress: Progress) -> Iterator[str]:
    yield format_progress(progress)
    for line in (line for data in progress.data for line in format_data_lines(data)):
        yield f"{progress.job}: {line}"
    if progress.goodput is not None and progress.goodput.total:
        yield f"{progress.job}: {format_goodput(progress.goodput)}"


@click.command()
@NAME
@click.argument("workers", type=int)
@NAMESPACE
@OF_JOB
@click.pass_obj
def scale(
    connection: ConnectionOptions,
    name: str,
    workers: int,
    namespace: str,
    dry_run: bool,  # noqa: FBT001 - click passes flags so
) -> None:
    """Set a job's number of worker replicas; no step is lost that need not be."""
    key = parse_name(namespace, name)
    with connection.client() as rover:
        if dry_run:
            print_change_diff(rover, patches.resize_job(rover.get(key), workers))
            return
        job = rover.scale(key, workers)
        click.echo(f"{job.key} has {workers} worker replicas")


@click.command()
@NAME
@click.argument("pod", required=False)
@NAMESPACE
@click.option("-c", "--container", help="Another one than the one that trains.")
@click.option("--tail", type=int, help="Only the last lines.")
@click.pass_obj
def logs(  # noqa: PLR0917 - click passes options by name
    connection: ConnectionOptions,
    name: str,
    pod: str | None,
    namespace: str,
    container: str | None,
    tail: int | None,
) -> None:
    """Print what a pod printed so far, the first one if none is named."""
    with connection.client() as rover:
        text = rover.logs(parse_name(namespace, name), pod, container=container, tail=tail)
        click.echo(text, nl=False)


@click.command()
@NAME
@NAMESPACE
@FORMAT
@click.pass_obj
def events(connection: ConnectionOptions, name: str, namespace: str, output: str) -> None:
    """Print a job's story."""
    with connection.client() as rover:
        found = rover.events(parse_name(namespace, name))
        print_value(found, output, *(Text(format_event(event)) for event in found))


@click.command()
@NAME
@NAMESPACE
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=pathlib.Path),
    help="File to write [default: NAME.html].",
)
@click.pass_obj
def report(
    connection: ConnectionOptions, name: str, namespace: str, output: pathlib.Path | None
) -> None:
    """Write a run's report, one HTML file that needs nothing else."""
    with connection.client() as rover:
        key = parse_name(namespace, name)
        target = output or pathlib.Path(f"{key.name}.html")
        click.echo(str(rover.report(key, target)))


@click.command()
@NAME
@NAMESPACE
@click.pass_obj
def delete(connection: ConnectionOptions, name: str, namespace: str) -> None:
    """Delete a job with its pods; checkpoints on claims and its record stay."""
    with connection.client() as rover:
        rover.delete(parse_name(namespace, name))
        click.echo(f"{name} deleted")


VERBS = (submit, list_jobs, watch, status, scale, logs, events, report, delete)
