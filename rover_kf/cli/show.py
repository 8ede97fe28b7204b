# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values as text for a terminal; pure but for the clock in ``Display``.

On a terminal progress is drawn in place by rich; otherwise each change is a plain line, so that a
log of it can be read.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Iterable
from types import TracebackType
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Goodput
from rover_kf.cli.data_progress import bars, data_part
from rover_kf.client import Progress

LAST_EVENTS = 8
"""Events shown below the progress on a terminal."""
LINE_SECONDS = 2.0
"""Least time between two plain lines that differ in numbers only."""


def job_table(jobs: Iterable[ObservedJob]) -> Table:
    """Jobs, one a row."""
    table = Table("namespace", "name", "phase", "replicas", "created", box=None)
    for job in jobs:
        replicas = ", ".join(f"{count} {kind}" for kind, count in job.replicas.items())
        created = dt.datetime.fromtimestamp(job.created_at).astimezone().strftime("%F %T")
        table.add_row(job.key.namespace, job.key.name, job.phase or "-", replicas, created)
    return table


def run_table(records: Iterable[RunRecord]) -> Table:
    """Runs, one a row."""
    table = Table("run", "job", "outcome", "steps", "restarts", "goodput", "started", box=None)
    for record in records:
        started = dt.datetime.fromtimestamp(record.started_at).astimezone().strftime("%F %T")
        name = f"{record.signature.namespace}/{record.signature.name}"
        steps = str(record.steps)
        goodput = f"{record.goodput.fraction:.0%}"
        row = (record.uid[:8], name, record.outcome, steps, str(record.restarts), goodput, started)
        table.add_row(*row)
    return table


def event_line(event: Event) -> str:
    """One event."""
    at = dt.datetime.fromtimestamp(event.at).astimezone().strftime("%T")
    return f"{at} {'!' if event.warning else ' '} {event.reason}: {event.message}"


def progress_line(progress: Progress) -> str:
    """Where the job stands, in one line."""
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [
        progress.phase or "New",
        *([progress.activity] if progress.activity else []),
        f"replicas {progress.running}/{progress.replicas}",
        f"step {progress.step}{total}",
        f"{progress.samples_per_second:.0f} samples/s",
        f"in memory {_step(progress.sealed_step)}",
        f"durable {_step(progress.durable_step)}",
    ]
    parts += [data_part(data) for data in progress.data]
    if progress.restarts:
        parts.append(f"restarts {progress.restarts}")
    return f"{progress.job}: " + ", ".join(parts)


def goodput_line(spent: Goodput) -> str:
    """What a job's seconds were spent on, the most first."""
    seconds = {field.name: getattr(spent, field.name) for field in dataclasses.fields(spent)}
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    parts = [
        f"{name} {value:.1f} s ({value / spent.total:.1%})" for name, value in ordered if value
    ]
    return f"{spent.total:.1f} s: {', '.join(parts)}"


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)


@final
class Display:
    """Shows progress as it comes; a context manager.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: list[Event] = []
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show where the job stands and what was told since."""
        if self._live:
            self._events = [*self._events, *progress.events][-LAST_EVENTS:]
            lines = [Text(event_line(event), style=_style(event)) for event in self._events]
            told = Text(progress_line(dataclasses.replace(progress, data=())), style="bold")
            self._live.update(Group(told, bars(progress.data), *lines))
            return
        for event in progress.events:
            self._console.print(event_line(event), markup=False, highlight=False, soft_wrap=True)
        line, now = progress_line(progress), time.monotonic()
        late = now - self._said_at >= LINE_SECONDS
        if line != self._said and (late or progress.finished):
            self._said, self._said_at = line, now
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _style(event: Event) -> str:
    return "yellow" if event.warning else "dim"
