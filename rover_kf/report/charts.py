# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Plain geometry of the report's drawings; the template only writes it down as SVG.

Coordinates are user units of a 720 x HEIGHT picture, y down. Every chart can also be read as the
table that stands beside it in the page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 30


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A box; ``kind`` is its class in the style sheet, ``title`` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a moment."""

    x: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """One drawing."""

    name: str
    title: str
    description: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    """(class, words)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A value that held from one moment to another."""

    start: float
    end: float
    value: float
    kind: str
    title: str
    thin: bool = False
    """Drawn as a line at the value instead of a box below it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened."""

    at: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """What a chart is called and how it is explained."""

    name: str
    title: str
    description: str
    legend: tuple[tuple[str, str], ...]


def draw(
    words: Words,
    spans: Sequence[Span],
    moments: Iterable[Moment],
    *,
    period: tuple[float, float],
) -> Chart:
    """Lay out spans and moments over a period (Unix seconds)."""
    start, end = period
    length = max(end - start, 1e-9)
    highest = max((span.value for span in spans), default=0.0)
    top = _rounded_up(highest)

    def x(at: float) -> float:
        inside = min(max(at, start), start + length)
        return round(LEFT + (inside - start) / length * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    bars = tuple(
        Bar(
            x(span.start),
            y(span.value) - (1 if span.thin else 0),
            max(0.8, round(x(span.end) - x(span.start), 1)),
            2 if span.thin else max(0.0, round(HEIGHT - BOTTOM - y(span.value), 1)),
            span.kind,
            span.title,
        )
        for span in spans
    )
    marks = tuple(Mark(x(item.at), item.kind, item.title) for item in moments)
    across = tuple(Tick(x(start + at), _clock(at)) for at in _steps(length, 6))
    up = tuple(Tick(y(value), f"{value:g}") for value in _steps(top, 4))
    return Chart(words.name, words.title, words.description, bars, marks, across, up, words.legend)


def stacked(parts: Sequence[tuple[str, str, float]]) -> tuple[Bar, ...]:
    """One row of boxes in proportion; (class, words, value), values not negative."""
    total = sum(value for _, _, value in parts)
    bars, x = [], 0.0
    for kind, words, value in parts:
        width = value / total * WIDTH if total else 0.0
        bars.append(Bar(round(x, 1), 0, round(width, 1), 28, kind, words))
        x += width
    return tuple(bars)


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999)


def _steps(length: float, most: int) -> list[float]:
    step = _rounded_up(length / most)
    return [round(i * step, 9) for i in range(int(length / step + 1e-9) + 1)]


def _clock(seconds: float) -> str:
    if seconds < 180:  # noqa: PLR2004 - up to three minutes seconds read best
        return f"{seconds:g} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:g} min" if seconds % 60 == 0 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
