# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a drawing is made of, in places of its picture; the template writes it down as SVG."""

from __future__ import annotations

import dataclasses

MAX_MARKS = 40
"""Marks of a drawing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    position: float
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
class Dot:
    """A place in the picture."""

    x: float
    y: float
    kind: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """A line through places; ``points`` as SVG writes them."""

    points: str
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
    dots: tuple[Dot, ...] = ()
    paths: tuple[Path, ...] = ()
    rows: tuple[float, ...] = ()
    """Where one row ends and the next begins."""

    @property
    def is_crowded(self) -> bool:
        """Whether lines from top to bottom would hide what is behind them."""
        return len(self.marks) > MAX_MARKS
