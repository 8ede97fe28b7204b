# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Progress, events and seconds as lines of text; pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator

from rover_kf.api.jobs import Event
from rover_kf.api.samples import Goodput
from rover_kf.client.progress.data_progress import format_data
from rover_kf.client.progress.job_progress import Progress


def format_event(event: Event) -> str:
    """One event."""
    at = dt.datetime.fromtimestamp(event.at).astimezone().strftime("%T")
    return f"{at} {'!' if event.warning else ' '} {event.reason}: {event.message}"


def format_progress(progress: Progress) -> str:
    """Where the job stands, in one line."""
    parts = [
        progress.phase or "New",
        *([progress.activity] if progress.activity else []),
        f"replicas {progress.running}/{progress.replicas}",
        *_format_reported(progress),
        f"in memory {_step(progress.sealed_step)}",
        f"durable {_step(progress.durable_step)}",
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


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)
