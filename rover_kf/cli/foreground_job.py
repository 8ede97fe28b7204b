# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An embedded job of this very command: shown until its end, drained when it is interrupted."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable
from types import FrameType

import click
from rich.console import Console

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.cli import exit_codes
from rover_kf.client import Progress, RoverClient
from rover_kf.client.progress.progress_display import ProgressDisplay
from rover_kf.system.signals import StopSignals

DRAIN_SECONDS = 60.0


def exit_on_sigterm() -> None:
    """Let SIGTERM end the command with its exit code, by way of everything that cleans up."""
    signal.signal(signal.SIGTERM, _raise_exit)


def run_to_end(
    rover: RoverClient, submit: Callable[[], JobKey], report: pathlib.Path | None
) -> int:
    """Submit a job and show it until it ends; the command's exit code.

    Args:
        rover: embedded.
        submit: creates the job.
        report: HTML file to write; None writes none.
    """
    console = Console()
    with StopSignals(exit_on_second=True) as interrupts:
        key = submit()
        last = _follow(rover, key, console, interrupts)
        if interrupts.code:
            _drain(rover, key)
            return interrupts.code
    if report is not None:
        console.print(f"report: {rover.report(key, report)}", soft_wrap=True)
    if last.phase != "Succeeded":
        click.echo(f"error: {key} is {last.phase}: {rover.verdict(key)}", err=True)
        return 1
    return 0


def _follow(rover: RoverClient, key: JobKey, console: Console, interrupts: StopSignals) -> Progress:
    with ProgressDisplay(console) as screen:
        for progress in rover.watch(key):
            screen.show(progress)
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
        except errors.NoSuchJob:
            rover.settle(key)
            click.echo(f"{key} was ended; rover-kf report {key.name} tells of it", err=True)
            return
        time.sleep(0.05)


def _raise_exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(exit_codes.TERMINATED)
