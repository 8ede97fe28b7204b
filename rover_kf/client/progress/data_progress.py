# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far data sets are read, for a terminal; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.progress_bar import ProgressBar
from rich.table import Table

from rover_kf.api.data import DataStatus

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
