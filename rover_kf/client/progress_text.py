# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Progress, data sets, events and seconds as lines of text; pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator

from rich.progress_bar import ProgressBar
from rich.table import Table

from rover_kf.api.data import DataStatus
from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput
from rover_kf.client.job_progress import Progress

_WIDTH = 24
_MOST_SHARES = 8


def format_data(data: DataStatus) -> str:
    """In a few words."""
    whole = f" {data.done / data.slots:.0%}" if data.slots else ""
    left = "" if data.eta_seconds is None else f", {data.eta_seconds:.0f} s left"
    aside = f", {data.poisoned} set aside" if data.poisoned else ""
    return f"{data.name}{whole}{_epoch(data)} ({data.rate:.0f}/s{left}{aside})"


def format_data_lines(data: DataStatus) -> Iterator[str]:
    """In all that is known: a bar, who has how much, and what was set aside."""
    filled = _WIDTH * data.done // data.slots if data.slots else 0
    bar = "#" * filled + "-" * (_WIDTH - filled)
    yield f"[{bar}] {format_data(data)}, {data.done} of {data.slots}, {data.outstanding} lent"
    if data.workers:
        yield f"  used by {', '.join(_shares(data))}"
    for poison in data.poison:
        span = poison.span
        place = f"{span.partition} " if span.partition else ""
        tries = "1 try" if poison.tries == 1 else f"{poison.tries} tries"
        yield f"  set aside: {place}{span.begin} to {span.end} after {tries}: {poison.reason}"


def progress_bars(datasets: Iterable[DataStatus]) -> Table:
    """Drawn in place, a row for each data set."""
    found = Table.grid(padding=(0, 1))
    for data in datasets:
        bar = ProgressBar(total=max(data.slots, 1), completed=data.done, width=_WIDTH)
        found.add_row(
            bar, f"{format_data(data)}, {data.outstanding} lent", ", ".join(_shares(data))
        )
    return found


def _epoch(data: DataStatus) -> str:
    if data.epochs == 1:
        return ""
    return f" of epoch {data.epoch + 1}" + (f"/{data.epochs}" if data.epochs else "")


def _shares(data: DataStatus) -> list[str]:
    """What each rank has used, of what all have; the first few."""
    whole = sum(share.used for share in data.workers)
    found = [
        f"rank {share.rank} {share.used / whole if whole else 0:.0%}"
        for share in data.workers[:_MOST_SHARES]
    ]
    more = len(data.workers) - len(found)
    return [*found, f"{more} more"] if more else found


def format_time(timestamp: float, form: str = "%F %T", zone: dt.tzinfo | None = None) -> str:
    """Format Unix seconds, by default as this machine's local time."""
    return dt.datetime.fromtimestamp(timestamp, zone).astimezone(zone).strftime(form)


def format_event(event: Event, zone: dt.tzinfo | None = None) -> str:
    """Format one event, with its local time by default."""
    at = format_time(event.at, "%T", zone)
    return f"{at} {'!' if event.warning else ' '} {event.reason}: {event.message}"


def format_progress(progress: Progress) -> str:
    """Where the job stands, in one line."""
    parts = [
        progress.phase or "New",
        *([progress.activity] if progress.activity else []),
        f"replicas {progress.running}/{progress.replicas}",
        *_format_reported(progress),
        f"in memory {format_step(progress.sealed_step)}",
        f"durable {format_step(progress.durable_step)}",
    ]
    parts += [format_data(data) for data in progress.data]
    if progress.restarts:
        parts.append(f"restarts {progress.restarts}")
    return f"{progress.job}: " + ", ".join(parts)


def _format_reported(progress: Progress) -> Iterator[str]:
    """What the script says of its steps; one that knows nothing of rover-kf says nothing."""
    if not progress.step:
        yield "steps not reported" + " yet" * (not progress.finished)
        return
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    yield f"step {progress.step}{total}"
    yield f"{progress.samples_per_second:.0f} samples/s"


def format_goodput(spent: Goodput) -> str:
    """What a job's seconds were spent on, the most first."""
    seconds = {field.name: getattr(spent, field.name) for field in dataclasses.fields(spent)}
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    parts = [
        f"{name} {value:.1f} s ({value / spent.total:.1%})" for name, value in ordered if value
    ]
    return f"{spent.total:.1f} s: {', '.join(parts)}"


def format_step(step: int | None) -> str:
    """A step; ``-`` where there is none."""
    return "-" if step is None else str(step)
