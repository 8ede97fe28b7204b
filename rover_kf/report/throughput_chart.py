# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Measured throughput, and what was to be expected of each world before it came; pure.

What was to be expected is said by the model that also decides (rover_kf.scaling.throughput), fitted
to nothing but the windows before the world's first one.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.report import charts, event_parsing, number_text
from rover_kf.report.charts import ChartData, ChartSpan, Curve, Labels
from rover_kf.report.svg_shapes import Chart
from rover_kf.scaling import throughput

MAX_WORLDS = 24
"""Worlds whose throughput is foretold; the newest."""


@dataclasses.dataclass(frozen=True, slots=True)
class ThroughputExpectation:
    """What a world was to give, and what it gave; all rates in the record's unit."""

    start: float
    end: float
    """Unix seconds, of its first and last window."""
    world_size: int
    rate: float
    lower: float
    upper: float
    measured: float
    """Median of its windows."""
    measured_before: bool
    """Whether the size had been measured before."""

    @property
    def met(self) -> bool:
        """Whether what came lies in the interval."""
        return self.lower <= self.measured <= self.upper


def unit(windows: Sequence[Throughput]) -> str:
    """What rates are counted in."""
    return "samples/s" if any(window.global_batch for window in windows) else "steps/s"


def rate_before_raise(window: Throughput, unit: str) -> float:
    """Of a window, in that unit."""
    if unit == "samples/s":
        return window.samples_per_second
    return 1 / window.step_seconds if window.step_seconds else 0.0


def expect_rates(windows: Sequence[Throughput]) -> tuple[ThroughputExpectation, ...]:
    """For each world but the first, in the order of time."""
    counted = unit(windows)
    found, before = [], 0
    stretches = [list(group) for _, group in itertools.groupby(windows, _world)]
    for number, group in enumerate(stretches):
        earlier, before = windows[:before], before + len(group)
        model = throughput.fit(earlier) if number >= max(1, len(stretches) - MAX_WORLDS) else None
        if model is None or group[0].world_size < 1:
            continue
        told = model.predict(group[0].world_size)
        found.append(
            ThroughputExpectation(
                group[0].started_at,
                group[-1].ended_at,
                told.world_size,
                rate=told.samples_per_second,
                lower=told.lower,
                upper=told.upper,
                measured=statistics.median(rate_before_raise(window, counted) for window in group),
                measured_before=told.measured,
            )
        )
    return tuple(found)


def draw_throughput(record: RunRecord, expectations: Sequence[ThroughputExpectation]) -> Chart:
    """Windows as boxes, expectations as bands with a line."""
    counted = unit(record.windows)
    spans = [
        ChartSpan(
            window.started_at,
            window.ended_at,
            rate_before_raise(window, counted),
            "rate",
            f"{number_text.number(rate_before_raise(window, counted), counted)} of "
            f"{window.world_size} ranks",
        )
        for window in record.windows
    ]
    for one in expectations:
        title = (
            f"expected of {one.world_size} ranks: {number_text.number(one.rate)}, "
            f"{number_text.number(one.lower)} to {number_text.number(one.upper)} {counted}"
        )
        spans.append(ChartSpan(one.start, one.end, one.upper, "band", title, low=one.lower))
        spans.append(ChartSpan(one.start, one.end, one.rate, "promise", title, thin=True))
    words = Labels(
        "throughput",
        f"Throughput ({counted})",
        "Boxes are windows of steady steps, of a long run several as one; the curve is what was "
        "seen now and then. The line is what the model expected of a world before it came, the "
        "band the interval in which nine of ten come true; of the first world nothing is.",
        (
            ("rate", "measured"),
            ("seen", "seen now and then"),
            ("promise", "expected"),
            ("band", "its interval"),
            ("bad", "failure"),
        ),
    )
    seen = tuple((look.at, look.samples_per_second) for look in record.looks)
    told_so = counted == "samples/s" and len(seen) > 1
    curves = (Curve(seen, "seen", "throughput over the last steps at each look"),) * told_so
    content = ChartData(
        spans=spans, markers=event_parsing.make_markers(record, "bad"), curves=curves
    )
    return charts.draw_chart(words, content, period=event_parsing.time_range(record))


def _world(window: Throughput) -> int:
    return window.world_size
