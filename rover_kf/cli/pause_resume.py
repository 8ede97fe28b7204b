# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Verbs that steer a job's size by hand and say why it is what it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import click
from rich.text import Text

from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.job_verbs import NAME, NAMESPACE
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.cli.patch import OF_JOB, print_change_diff
from rover_kf.client import patches
from rover_kf.client.explain import DecisionOutcome, Explanation, RaisedCpu, RaisedMemory
from rover_kf.client.job_name import parse_name
from rover_kf.injection.quantities import format_bytes, format_millicores


@click.command()
@NAME
@NAMESPACE
@click.option(
    "--wait", default=120.0, show_default=True, help="Most seconds to wait for its pods' end."
)
@click.option("--force", is_flag=True, help="Even if what it has done is lost by it.")
@OF_JOB
@click.pass_obj
def pause(  # noqa: PLR0917 - click passes options by name
    connection: ConnectionOptions,
    name: str,
    namespace: str,
    wait: float,
    force: bool,  # noqa: FBT001 - click passes flags so
    dry_run: bool,  # noqa: FBT001 - the same
) -> int:
    """Suspend a job: its pods save, make that durable, and end; exit code 1 if they do not."""
    key = parse_name(namespace, name)
    with connection.client() as rover:
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
@NAME
@NAMESPACE
@OF_JOB
@click.pass_obj
def resume(connection: ConnectionOptions, name: str, namespace: str, dry_run: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Let a suspended job go on from where it was."""
    key = parse_name(namespace, name)
    with connection.client() as rover:
        if dry_run:
            print_change_diff(rover, patches.resume_job(rover.get(key)))
            return
        job = rover.resume(key)
        click.echo(f"{job.key} goes on with {job.nodes} pods")


@click.command()
@NAME
@NAMESPACE
@FORMAT
@click.option("--last", type=int, default=20, show_default=True, help="Decisions to show.")
@click.pass_obj
def explain(
    connection: ConnectionOptions, name: str, namespace: str, output: str, last: int
) -> None:
    """Say why a job has its size: each decision, what it reckoned with and what came of it.

    The history of its controller ($ROVER_KF_HISTORY) has a job's decisions from its beginning on,
    of alike ones to stay the first and the newest; without it the job's own annotation tells the
    last few.
    """
    with connection.client() as rover:
        found = rover.explain(parse_name(namespace, name))
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
        yield _format_memory_raise(raised)
    for cores in explanation.cpu:
        yield _format_cpu_raise(cores)
    for effect in explanation.servers:
        yield (
            f"{effect.description}: {effect.steps_per_second:.3g} "
            f"({effect.lower:.3g}-{effect.upper:.3g}) "
            f"steps/s expected, {effect.gain:.2f} times"
        )
    if not explanation.decisions:
        yield "no decision yet"
    for one in explanation.decisions[-last:]:
        yield from _format_decision(one)
    if explanation.decisions:
        yield f"(from the {explanation.source})"


def _format_bans(explanation: Explanation) -> Iterator[str]:
    for size, until in explanation.banned:
        yield f"not tried until {_format_time(until)}: {size} replicas"
    for workers, servers, until in explanation.banned_setups:
        yield f"not tried until {_format_time(until)}: {workers} workers with {servers} PS"


def _format_memory_raise(raised: RaisedMemory) -> str:
    limits = f"{format_bytes(raised.stated)} -> {format_bytes(raised.limit)}"
    when = f"{_format_time(raised.raised_at)} " if raised.raised_at else ""
    why = raised.reason or "by what the run before needed"
    return f"{when}memory limit of {raised.replicas} replicas {limits}: {why}"


def _format_cpu_raise(raised: RaisedCpu) -> str:
    limits = f"{format_millicores(raised.stated)} -> {format_millicores(raised.limit)}"
    when = f"{_format_time(raised.raised_at)} " if raised.raised_at else ""
    return f"{when}CPU limit of {raised.replicas} replicas {limits}: {raised.reason}"


def _format_decision(outcome: DecisionOutcome) -> Iterator[str]:
    told = outcome.decision
    unit = "steps/s" if told.servers else "samples/s"
    done = ", applied" if told.applied else ""
    yield f"{_format_time(told.at)} {told.action} {told.change}{done}: {told.reason}"
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


def _format_time(timestamp: float) -> str:
    return dt.datetime.fromtimestamp(timestamp).astimezone().strftime("%T")


VERBS = (pause, resume, explain)
