# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf run``: the whole path on this machine, with live progress."""

from __future__ import annotations

import pathlib
import signal
import time
from types import FrameType

import click
from rich.console import Console

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.cli import show, sizes
from rover_kf.cli.interrupts import Interrupts
from rover_kf.cli.place import Place
from rover_kf.client import Progress, RoverClient

DRAIN_SECONDS = 60.0
TERMINATED = 143


@click.command()
@click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))
@click.option("--inject/--no-inject", default=True, help="Patch the job before it runs.")
@click.option("--report", type=click.Path(path_type=pathlib.Path), help="Report to write, HTML.")
@click.pass_obj
def run(place: Place, file: pathlib.Path, inject: bool, report: pathlib.Path | None) -> int:  # noqa: FBT001 - click passes flags so
    """Run a PyTorchJob on this machine: recommend, patch, train, record.

    Ctrl-C drains the job and leaves nothing behind; checkpoints on its claims stay.
    """
    console = Console()
    signal.signal(signal.SIGTERM, _terminated)
    with place.embedded() as rover:
        _recommend(rover, file, console)
        with Interrupts() as interrupts:
            key = rover.submit(file, inject=inject).key
            last = _follow(rover, key, console, interrupts)
            if interrupts.code:
                _drain(rover, key)
                return interrupts.code
        if report is not None and inject:
            console.print(f"report: {rover.report(key, report)}", soft_wrap=True)
        if last.phase != "Succeeded":
            click.echo(f"error: {key} is {last.phase}: {rover.verdict(key)}", err=True)
            return 1
        return 0


def _recommend(rover: RoverClient, file: pathlib.Path, console: Console) -> None:
    found = rover.recommend(file)
    if console.is_terminal:
        console.print(sizes.table(found))
    else:
        click.echo("\n".join(sizes.lines(found)))


def _follow(rover: RoverClient, key: JobKey, console: Console, interrupts: Interrupts) -> Progress:
    with show.Display(console) as display:
        for progress in rover.watch(key):
            display.show(progress)
            if interrupts.code:
                break
    return progress


def _drain(rover: RoverClient, key: JobKey) -> None:
    """Delete the job and wait until its pods have gone, as a cluster would."""
    click.echo(f"draining {key}", err=True)
    rover.delete(key)
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            rover.get(key)
        except errors.JobNotFound:
            return
        time.sleep(0.05)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


VERBS = (run,)
