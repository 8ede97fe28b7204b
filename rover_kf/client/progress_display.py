# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Progress in a notebook's cell or on a terminal, drawn in place; elsewhere as lines."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any, final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rover_kf.api.jobs import Event
from rover_kf.client.job_progress import Progress
from rover_kf.client.progress_text import format_event, format_progress, progress_bars
from rover_kf.client.views import EventList

LAST_EVENTS = 8
"""Events shown below the progress where it is drawn in place."""
LINE_SECONDS = 2.0
"""Least time between two plain lines that differ in numbers only."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgressFrame:
    """What is shown at one moment: where the job stands, and what was told last."""

    progress: Progress
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n".join([format_progress(self.progress), *map(format_event, self.events)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        done, total = self.progress.step, self.progress.total_steps
        bar = f"<progress max='{total}' value='{done}'></progress>" if total else ""
        told = EventList(self.events)._repr_html_() if self.events else ""
        return f"{bar}{self.progress._repr_html_()}{told}"


@final
class ProgressDisplay:
    """A context manager that shows progress: in a notebook's cell, else on the console."""

    def __init__(self, console: Console | None = None) -> None:
        self._display = _cell_display() if console is None else None
        self._cell: Any = None
        self._console = console or Console()
        drawn = self._display is None and self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=4) if drawn else None
        self._events: tuple[Event, ...] = ()
        self._printed = ""
        self._printed_at = 0.0

    def __enter__(self) -> ProgressDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show where the job stands and what was told since."""
        self._events = (*self._events, *progress.events)[-LAST_EVENTS:]
        look = ProgressFrame(progress, self._events)
        if self._display is not None:
            self._draw_cell(look)
        elif self._live:
            self._live.update(_render(look))
        else:
            self._print(progress)

    def _draw_cell(self, frame: ProgressFrame) -> None:
        if self._cell is None:
            self._cell = self._display(frame, display_id=True)  # type: ignore[misc] # of IPython
        else:
            self._cell.update(frame)

    def _print(self, progress: Progress) -> None:
        for event in progress.events:
            self._line(format_event(event))
        line, now = format_progress(progress), time.monotonic()
        late = now - self._printed_at >= LINE_SECONDS
        if line != self._printed and (late or progress.finished):
            self._printed, self._printed_at = line, now
            self._line(line)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _render(frame: ProgressFrame) -> Group:
    lines = [
        Text(format_event(event), style="yellow" if event.warning else "dim")
        for event in frame.events
    ]
    # Data sets have bars of their own.
    told = format_progress(dataclasses.replace(frame.progress, data=()))
    return Group(Text(told, style="bold"), progress_bars(frame.progress.data), *lines)


def _cell_display() -> Any:
    """IPython's ``display`` if this runs in a notebook's kernel, else None; loads nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return sys.modules["IPython.display"].display
