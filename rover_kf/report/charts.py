# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Plain geometry of the report's drawings; the template only writes it down as SVG.

Coordinates are user units of a 720 x HEIGHT picture, y down. Every chart can also be read as the
table that stands beside it in the page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rover_kf.report.svg_shapes import Bar, Chart, Dot, Mark, Path, Tick

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 30


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
    low: float = 0.0
    """Where the box ends below."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    """Something that happened at a place of the vertical axis."""

    at: float
    value: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """Values by time, joined by lines."""

    points: tuple[tuple[float, float], ...]
    """(Unix seconds, value)."""
    kind: str
    title: str


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


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """What a chart shows."""

    spans: Sequence[Span] = ()
    moments: Sequence[Moment] = ()
    spots: Sequence[Spot] = ()
    curves: Sequence[Curve] = ()
    whole: bool = False
    """The vertical axis counts things: no fractions, and a row for each where there are few."""


def draw(words: Words, content: Content, *, period: tuple[float, float]) -> Chart:
    """Lay out what there is over a period (Unix seconds)."""
    scale = _Scale(period[0], max(period[1] - period[0], 1e-9), _top(content), content.whole)
    across = tuple(Tick(scale.x(scale.start + at), _clock(at)) for at in _times(scale.length))
    return Chart(
        words.name,
        words.title,
        words.description,
        bars=tuple(scale.bar(span) for span in content.spans),
        marks=_marks(content.moments, scale),
        across=across,
        up=tuple(Tick(scale.y(value), f"{value:g}") for value in scale.values()),
        legend=words.legend,
        dots=tuple(
            Dot(scale.x(one.at), scale.y(one.value), one.kind, one.title) for one in content.spots
        ),
        paths=tuple(scale.path(curve) for curve in content.curves),
        rows=scale.rows(),
    )


MOST_TICKS, MOST_ROWS = 6, 32
APART = 3.0
"""Marks of a kind that lie closer are drawn as one."""
_TIMES = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Scale:
    """From seconds and values to places."""

    start: float
    length: float
    top: float
    whole: bool

    def x(self, at: float) -> float:
        inside = min(max(at, self.start), self.start + self.length)
        return round(LEFT + (inside - self.start) / self.length * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def bar(self, span: Span) -> Bar:
        x, y = self.x(span.start), self.y(span.value)
        width = max(0.8, round(self.x(span.end) - x, 1))
        if span.thin:
            return Bar(x, y - 1, width, 2, span.kind, span.title)
        height = max(0.0, round(self.y(span.low) - y, 1))
        return Bar(x, y, width, height, span.kind, span.title)

    def path(self, curve: Curve) -> Path:
        points = " ".join(f"{self.x(at):g},{self.y(value):g}" for at, value in curve.points)
        return Path(points, curve.kind, curve.title)

    def values(self) -> list[float]:
        if self.whole:
            step = max(1.0, math.ceil(_rounded_up(self.top / 5)))
            return [i * step for i in range(int(self.top / step + 1e-9) + 1)]
        return _steps(self.top, 4)

    def rows(self) -> tuple[float, ...]:
        few = self.whole and self.top <= MOST_ROWS
        return tuple(self.y(value) for value in range(1, int(self.top))) if few else ()


def _marks(moments: Sequence[Moment], scale: _Scale) -> tuple[Mark, ...]:
    """One for each moment, or for several that could not be told apart."""
    found: list[tuple[float, str, list[str]]] = []
    newest: dict[str, int] = {}
    for moment in moments:
        x, place = scale.x(moment.at), newest.get(moment.kind)
        if place is not None and x - found[place][0] < APART:
            found[place][2].append(moment.title)
        else:
            newest[moment.kind] = len(found)
            found.append((x, moment.kind, [moment.title]))
    return tuple(
        Mark(
            x, kind, titles[0] if len(titles) == 1 else f"{titles[0]} (and {len(titles) - 1} more)"
        )
        for x, kind, titles in found
    )


def _times(length: float) -> list[float]:
    """Where the horizontal axis is labelled: whole seconds, minutes, hours or days."""
    if length < MOST_TICKS:
        return _steps(length, MOST_TICKS)
    step = next((one for one in _TIMES if length / one <= MOST_TICKS), math.ceil(length / 5))
    return [float(i * step) for i in range(int(length / step + 1e-9) + 1)]


def _top(content: Content) -> float:
    values = [span.value for span in content.spans] + [spot.value for spot in content.spots]
    values += [value for curve in content.curves for _, value in curve.points]
    highest = max(values, default=0.0)
    return max(1.0, math.ceil(highest)) if content.whole else _rounded_up(highest)


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
    """``90 s``, ``5 min``, ``1 h 30 min``, ``2 d 12 h``."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:g} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    words = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        words += [f"{count:g} {name}"] * bool(count)
    return " ".join(words[:2])
