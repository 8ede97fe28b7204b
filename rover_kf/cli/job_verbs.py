# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Verbs of a job's life, of its size and of its end, and traces of its recoveries."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.text import Text

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.jobs import JobKey
from rover_kf.cli import job_tables
from rover_kf.cli.options import (
    DRY_RUN,
    DRY_RUN_OF_JOB,
    FILE,
    ONE_NAMESPACE,
    PATH,
    ConnectionOptions,
    with_client,
    with_job,
)
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.cli.patch import print_change_diff, print_patch_diff
from rover_kf.client import Progress, RoverClient, manifests, patches
from rover_kf.client.explain import DecisionOutcome, Explanation, RaisedLimit
from rover_kf.client.manifests import format_name
from rover_kf.client.progress_display import ProgressDisplay
from rover_kf.client.progress_text import (
    format_data_lines,
    format_event,
    format_goodput,
    format_progress,
    format_time,
)
from rover_kf.client.results import CurrentRecords
from rover_kf.cluster.local import LocalCluster
from rover_kf.injection.quantities import format_bytes, format_millicores
from rover_kf.reconcilers.reconciler import run_foreground as reconcile


@click.command()
@FILE
@click.option("--inject/--no-inject", default=True, help="Patch the job before it is created.")
@DRY_RUN
@with_client
def submit(rover: RoverClient, file: pathlib.Path, inject: bool, dry_run: bool) -> None:
    """Create a job on the cluster and return."""
    if dry_run:
        print_patch_diff(rover, file)
        return
    if isinstance(rover.cluster, LocalCluster):
        raise errors.InputError(
            "an embedded job ends with its command: use rover-kf run, or --on kubernetes"
        )
    click.echo(f"{rover.submit(file, inject=inject).key} created")


@click.command("list")
@ONE_NAMESPACE
@FORMAT
@with_client
def list_jobs(rover: RoverClient, namespace: str | None, output: str) -> None:
    """List labelled jobs.

    A TFJob is told, and called by the other verbs, as tfjob/NAME.
    """
    found = rover.list(namespace)
    print_value(found, output, job_tables.job_table(found))


@click.command()
@with_job
@click.option(
    "--reconcile/--look-only", "acting", default=False, help="Also decide, scale and record."
)
@with_client
def watch(rover: RoverClient, key: JobKey, acting: bool) -> int:
    """Show a job's progress until it ends; with --reconcile do a controller's work for it."""
    stop = threading.Event()
    where = (rover.cluster, key, rover.history)
    worker = threading.Thread(target=reconcile, args=where, kwargs={"stop": stop})
    if acting:
        worker.start()
    try:
        with ProgressDisplay(Console()) as screen:
            for progress in rover.watch(key):
                screen.show(progress)
    finally:
        stop.set()
        if acting:
            worker.join()
    return 0 if progress.phase == "Succeeded" else 1


@click.command()
@with_job
@click.option("--json", "as_json", is_flag=True, help="Print the coordinator's whole answer.")
@FORMAT
@with_client
def status(rover: RoverClient, key: JobKey, as_json: bool, output: str) -> None:
    """Say where a job stands now."""
    if as_json:
        click.echo(codec.dumps(rover.status(key)).decode())
    else:
        progress = rover.progress(key)
        print_value(progress, output, *map(Text, _status_lines(progress)))


def _status_lines(progress: Progress) -> Iterator[str]:
    yield format_progress(progress)
    for line in (line for data in progress.data for line in format_data_lines(data)):
        yield f"{progress.job}: {line}"
    if progress.goodput is not None and progress.goodput.total:
        yield f"{progress.job}: {format_goodput(progress.goodput)}"


@click.command()
@with_job
@click.argument("workers", type=int)
@DRY_RUN_OF_JOB
@with_client
def scale(rover: RoverClient, key: JobKey, workers: int, dry_run: bool) -> None:
    """Set a job's number of worker replicas; no step is lost that need not be."""
    if dry_run:
        print_change_diff(rover, patches.resize_job(rover.get(key), workers))
    else:
        click.echo(f"{rover.scale(key, workers).key} has {workers} worker replicas")


@click.command()
@with_job
@click.argument("pod", required=False)
@click.option("-c", "--container", help="Another one than the one that trains.")
@click.option("--tail", type=int, help="Only the last lines.")
@with_client
def logs(
    rover: RoverClient, key: JobKey, pod: str | None, container: str | None, tail: int | None
) -> None:
    """Print what a pod printed so far, the first one if none is named."""
    click.echo(rover.logs(key, pod, container=container, tail=tail), nl=False)


@click.command()
@with_job
@FORMAT
@with_client
def events(rover: RoverClient, key: JobKey, output: str) -> None:
    """Print a job's story."""
    found = rover.events(key)
    print_value(found, output, *(Text(format_event(event)) for event in found))


@click.command()
@with_job
@click.option("-o", "--output", type=PATH, help="File to write [default: NAME.html].")
@with_client
def report(rover: RoverClient, key: JobKey, output: pathlib.Path | None) -> None:
    """Write a run's report, one HTML file that needs nothing else."""
    click.echo(str(rover.report(key, output or pathlib.Path(f"{key.name}.html"))))


@click.command()
@with_job
@with_client
def delete(rover: RoverClient, key: JobKey) -> None:
    """Delete a job with its pods; checkpoints on claims and its record stay."""
    rover.delete(key)
    click.echo(f"{format_name(key)} deleted")


@click.command()
@with_job
@click.option(
    "--wait", default=120.0, show_default=True, help="Most seconds to wait for its pods' end."
)
@click.option("--force", is_flag=True, help="Even if what it has done is lost by it.")
@DRY_RUN_OF_JOB
@with_client
def pause(rover: RoverClient, key: JobKey, wait: float, force: bool, dry_run: bool) -> int:
    """Suspend a job: its pods save, make that durable, and end; exit code 1 if they do not."""
    if dry_run:
        print_change_diff(rover, patches.suspend_job(rover.get(key), force=force))
        return 0
    done = rover.pause(key, wait=wait, force=force)
    durable = "nothing" if done.durable_step is None else f"step {done.durable_step} or later"
    click.echo(f"{done.job.key} is suspended at step {done.step} or later; {durable} is durable")
    if done.pods:
        click.echo(f"{done.pods} pods are still ending after {wait:g} s", err=True)
    return 1 if done.pods else 0


@click.command()
@with_job
@DRY_RUN_OF_JOB
@with_client
def resume(rover: RoverClient, key: JobKey, dry_run: bool) -> None:
    """Let a suspended job go on from where it was."""
    if dry_run:
        print_change_diff(rover, patches.resume_job(rover.get(key)))
        return
    job = rover.resume(key)
    click.echo(f"{job.key} goes on with {job.nodes} pods")


@click.command()
@with_job
@FORMAT
@click.option("--last", type=int, default=20, show_default=True, help="Decisions to show.")
@with_client
def explain(rover: RoverClient, key: JobKey, output: str, last: int) -> None:
    """Say why a job has its size: each decision, what it reckoned with and what came of it.

    The history of its controller ($ROVER_KF_HISTORY) has a job's decisions from its beginning on,
    of alike ones to stay the first and the newest; without it the job's own annotation tells the
    last few.
    """
    found = rover.explain(key)
    print_value(found, output, *map(Text, format_explanation(found, last)))


def format_explanation(explanation: Explanation, last: int) -> Iterator[str]:
    """An explanation for a terminal."""
    yield (
        f"{explanation.job}: {explanation.replicas} Worker replicas, {explanation.mode}, "
        f"allowed {explanation.allowed}"
    )
    if explanation.unmanaged_reason:
        yield f"left alone: {explanation.unmanaged_reason}"
    if explanation.pending_change:
        yield f"under way: {explanation.pending_change}"
    yield from _format_bans(explanation)
    for raised in explanation.memory:
        yield _format_raise(raised, "memory", format_bytes)
    for raised in explanation.cpu:
        yield _format_raise(raised, "CPU", format_millicores)
    for effect in explanation.servers:
        yield (
            f"{effect.description}: {effect.steps_per_second:.3g} "
            f"({effect.lower:.3g}-{effect.upper:.3g}) steps/s expected, {effect.gain:.2f} times"
        )
    if not explanation.decisions:
        yield "no decision yet"
    for one in explanation.decisions[-last:]:
        yield from _format_decision(one)
    if explanation.decisions:
        yield f"(from the {explanation.source})"


def _format_bans(explanation: Explanation) -> Iterator[str]:
    for size, until in explanation.banned:
        yield f"not tried until {format_time(until, '%T')}: {size} replicas"
    for workers, servers, until in explanation.banned_setups:
        yield f"not tried until {format_time(until, '%T')}: {workers} workers with {servers} PS"


def _format_raise(raised: RaisedLimit, resource: str, format_amount: Callable[[int], str]) -> str:
    limits = f"{format_amount(raised.stated)} -> {format_amount(raised.limit)}"
    when = f"{format_time(raised.raised_at, '%T')} " if raised.raised_at else ""
    why = raised.reason or "by what the run before needed"
    return f"{when}{resource} limit of {raised.replicas} replicas {limits}: {why}"


def _format_decision(outcome: DecisionOutcome) -> Iterator[str]:
    told = outcome.decision
    unit = "steps/s" if told.servers else "samples/s"
    done = ", applied" if told.applied else ""
    yield f"{format_time(told.at, '%T')} {told.action} {told.change}{done}: {told.reason}"
    parts = [
        f"{told.windows} windows at {told.measured:.1f} {unit}",
        f"{told.seconds_left:.0f} s of work left",
        f"{told.restart_seconds:.1f} s a change",
        *([f"allowed {told.allowed}"] if told.allowed else []),
        *([f"not tried {told.banned}"] if told.banned else []),
        *([f"bound: {told.bound}"] if told.bound else []),
    ]
    yield f"         from {', '.join(parts)}"
    if told.action != "stay":
        then = f"measured then {outcome.measured_then:.1f} ({outcome.gain:.2f} times)"
        then = then if outcome.measured_then else "not measured yet"
        gain = f"{told.predicted:.1f} {unit} ({told.predicted_gain:.2f} times)"
        yield f"         predicted {gain}, {then}"


@click.command()
@with_job
@click.option("-o", "--output", type=PATH, help="File to write.")
@click.option(
    "--endpoint",
    metavar="URL",
    help="Receiver of OTLP over HTTP to send them to: http://collector:4318.",
)
@click.pass_obj
def trace(
    connection: ConnectionOptions, key: JobKey, output: pathlib.Path | None, endpoint: str | None
) -> None:
    """Tell a job's recoveries as OpenTelemetry traces: OTLP's JSON, printed or written, or sent.

    One trace a change of its world: rendezvous, each rank's restore, first step. What is under way
    is left out; the same change has the same ids each time, so that it may be sent again.
    Headers come of $OTEL_EXPORTER_OTLP_HEADERS. Needs the extra rover-kf[otel].
    """
    try:
        # Slow to import, and not everybody has a receiver of traces.
        from rover_kf.client import trace_receiver  # noqa: PLC0415
        from rover_kf.report import otlp  # noqa: PLC0415
    except ImportError as cause:
        message = "traces need OpenTelemetry's SDK and exporter: pip install 'rover-kf[otel]'"
        raise errors.InputError(message) from cause
    if endpoint:
        trace_receiver.traces_url(endpoint)  # refused before anybody is asked
    with connection.client() as rover:
        record = CurrentRecords(rover.cluster, rover.history).record(key, time.time())
    made = otlp.spans(record)
    if output is not None:
        manifests.write_text(output, otlp.text(made))
    if endpoint and made and (warning := trace_receiver.send(made, endpoint)):
        click.echo(f"warning: {warning}", err=True)
    if output is None and not endpoint:
        click.echo(otlp.text(made), nl=False)
    traces, spans = otlp.count_spans(made)
    sent = " sent" if endpoint and made else ""
    click.echo(f"{traces} traces, {spans} spans{sent}", err=True)


VERBS = (
    *(submit, list_jobs, watch, status, scale, logs, events, report, delete),
    *(pause, resume, explain, trace),
)
