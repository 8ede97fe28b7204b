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

MAX_MARKS = 40

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 14, 30


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    position: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class ChartSpan:
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
class Bar:
    """A box; ``kind`` is its class in the style sheet, ``title`` its tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """Something that happened: in ChartData at (Unix seconds, value), in a Chart at its place."""

    x: float
    y: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """Values by time, joined by lines; coordinates as those of a Dot."""

    points: tuple[tuple[float, float], ...]
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a moment; its coordinate as that of a Dot."""

    x: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Labels:
    """What a chart is called and how it is explained."""

    name: str
    title: str
    description: str
    legend: tuple[tuple[str, str], ...]
    """(class, words)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChartData:
    """What a chart shows."""

    spans: Sequence[ChartSpan] = ()
    marks: Sequence[Mark] = ()
    dots: Sequence[Dot] = ()
    curves: Sequence[Curve] = ()
    integral: bool = False
    """The vertical axis counts things: no fractions, and a row for each where there are few."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """One drawing, in places of its picture."""

    labels: Labels
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    dots: tuple[Dot, ...]
    curves: tuple[Curve, ...]
    rows: tuple[float, ...]
    """Where one row ends and the next begins."""

    @property
    def is_crowded(self) -> bool:
        """Whether lines from top to bottom would hide what is behind them."""
        return len(self.marks) > MAX_MARKS


def draw_chart(labels: Labels, data: ChartData, *, period: tuple[float, float]) -> Chart:
    """Lay out what there is over a period (Unix seconds)."""
    scale = _Scale(period[0], max(period[1] - period[0], 1e-9), _axis_top(data), data.integral)
    across = tuple(
        Tick(scale.x(scale.start + at), _format_duration(at)) for at in _time_ticks(scale.length)
    )
    return Chart(
        labels,
        bars=tuple(scale.bar(span) for span in data.spans),
        marks=_make_marks(data.marks, scale),
        across=across,
        up=tuple(Tick(scale.y(value), f"{value:g}") for value in scale.values()),
        dots=tuple(Dot(scale.x(one.x), scale.y(one.y), one.kind, one.title) for one in data.dots),
        curves=tuple(
            Curve(tuple((scale.x(x), scale.y(y)) for x, y in curve.points), curve.kind, curve.title)
            for curve in data.curves
        ),
        rows=scale.rows(),
    )


MAX_TICKS, MAX_ROWS = 6, 32
MIN_DISTANCE = 3.0
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
    integral: bool

    def x(self, timestamp: float) -> float:
        inside = min(max(timestamp, self.start), self.start + self.length)
        return round(LEFT + (inside - self.start) / self.length * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def bar(self, span: ChartSpan) -> Bar:
        x, y = self.x(span.start), self.y(span.value)
        width = max(0.8, round(self.x(span.end) - x, 1))
        if span.thin:
            return Bar(x, y - 1, width, 2, span.kind, span.title)
        height = max(0.0, round(self.y(span.low) - y, 1))
        return Bar(x, y, width, height, span.kind, span.title)

    def values(self) -> list[float]:
        if self.integral:
            step = max(1.0, math.ceil(_round_up(self.top / 5)))
            return [i * step for i in range(int(self.top / step + 1e-9) + 1)]
        return _value_ticks(self.top, 4)

    def rows(self) -> tuple[float, ...]:
        few = self.integral and self.top <= MAX_ROWS
        return tuple(self.y(value) for value in range(1, int(self.top))) if few else ()


def _make_marks(marks: Sequence[Mark], scale: _Scale) -> tuple[Mark, ...]:
    """One for each moment, or for several that could not be told apart."""
    found: list[tuple[float, str, list[str]]] = []
    newest: dict[str, int] = {}
    for moment in marks:
        x, place = scale.x(moment.x), newest.get(moment.kind)
        if place is not None and x - found[place][0] < MIN_DISTANCE:
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


def _time_ticks(length: float) -> list[float]:
    """Where the horizontal axis is labelled: whole seconds, minutes, hours or days."""
    if length < MAX_TICKS:
        return _value_ticks(length, MAX_TICKS)
    step = next((one for one in _TIMES if length / one <= MAX_TICKS), math.ceil(length / 5))
    return [float(i * step) for i in range(int(length / step + 1e-9) + 1)]


def _axis_top(data: ChartData) -> float:
    values = [span.value for span in data.spans] + [dot.y for dot in data.dots]
    values += [value for curve in data.curves for _, value in curve.points]
    highest = max(values, default=0.0)
    return max(1.0, math.ceil(highest)) if data.integral else _round_up(highest)


def stack_bars(parts: Sequence[tuple[str, str, float]]) -> tuple[Bar, ...]:
    """One row of boxes in proportion; (class, words, value), values not negative."""
    total = sum(value for _, _, value in parts)
    bars, x = [], 0.0
    for kind, words, value in parts:
        width = value / total * WIDTH if total else 0.0
        bars.append(Bar(round(x, 1), 0, round(width, 1), 28, kind, words))
        x += width
    return tuple(bars)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999)


def _value_ticks(length: float, max_ticks: int) -> list[float]:
    step = _round_up(length / max_ticks)
    return [round(i * step, 9) for i in range(int(length / step + 1e-9) + 1)]


def _format_duration(seconds: float) -> str:
    """``90 s``, ``5 min``, ``1 h 30 min``, ``2 d 12 h``."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:g} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    words = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        words += [f"{count:g} {name}"] * bool(count)
    return " ".join(words[:2])
