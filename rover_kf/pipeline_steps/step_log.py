# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's progress as the lines of a step's log, which a pipeline's page shows as they come."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable

from rover_kf.api.jobs import Event
from rover_kf.client import Progress

NUMBER_SECONDS = 15.0
"""Least time between two lines that differ in numbers only."""


class StepLog:
    """Tells what is new.

    Args:
        say: takes a line.
        clock: monotonic seconds.
    """

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._logged: set[tuple[str, str, float]] = set()
        self._state: tuple[object, ...] = ()
        self._line, self._logged_at = "", 0.0

    def log_events(self, events: Iterable[Event]) -> None:
        """Tell those that were not told yet."""
        for event in events:
            mark = (event.reason, event.message, event.at)
            if mark not in self._logged:
                self._logged.add(mark)
                self._say(format_event(event))

    def log_progress(self, now: Progress) -> None:
        """Tell where the job stands, if that has changed."""
        state = (now.phase, now.activity, now.replicas, now.running, now.nodes, now.restarts)
        line = format_progress(now)
        late = self._clock() - self._logged_at >= NUMBER_SECONDS
        if state != self._state or (line != self._line and late):
            self._state, self._line, self._logged_at = state, line, self._clock()
            self._say(line)


def format_event(event: Event) -> str:
    """One event."""
    at = dt.datetime.fromtimestamp(event.at, tz=dt.timezone.utc).strftime("%T")
    return f"{at} {'!' if event.warning else ' '} {event.reason}: {event.message}"


def format_progress(now: Progress) -> str:
    """Where a job stands."""
    total = f"/{now.total_steps}" if now.total_steps else ""
    parts = [
        f"{now.phase or 'New'}{f' ({now.activity})' if now.activity else ''}",
        f"pods {now.running}/{now.replicas}",
        f"step {now.step}{total}",
        f"{now.samples_per_second:.0f} samples/s",
        f"in memory {_step(now.sealed_step)}",
        f"durable {_step(now.durable_step)}",
        f"restarts {now.restarts}",
    ]
    if now.goodput is not None and now.goodput.total:
        parts.append(f"goodput {now.goodput.fraction:.0%}")
    return f"{now.job}: " + ", ".join(parts)


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)
