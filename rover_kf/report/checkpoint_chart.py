# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what saving cost, and how far storage was behind; pure."""

from __future__ import annotations

from collections.abc import Sequence

from rover_kf.api import names
from rover_kf.api.records import ProgressSample, RunRecord
from rover_kf.report import charts, event_parsing, number_text
from rover_kf.report.charts import ChartData, ChartSpan, Curve, Labels, Marker
from rover_kf.report.svg_shapes import Chart


def draw_stalls(record: RunRecord) -> Chart:
    """Time blocked by saves, a minute of each window: of a long run they are not of one length."""
    spans = [
        ChartSpan(
            w.started_at,
            w.ended_at,
            60_000 * w.save_seconds / max(w.ended_at - w.started_at, w.save_seconds, 1e-3),
            "save",
            f"{number_text.seconds(w.save_seconds)} blocked by saves in {w.steps} steps",
        )
        for w in record.windows
    ]
    words = Labels(
        "checkpoints",
        "Checkpoints (ms blocked a minute)",
        "How long saving to memory held a minute of training up, by windows (slowest rank).",
        (("save", "blocked by saves"),),
    )
    return charts.draw_chart(words, ChartData(spans), period=event_parsing.time_range(record))


def durable_lags(looks: Sequence[ProgressSample]) -> tuple[tuple[float, float], ...]:
    """(Unix seconds, seconds since the newest durable step was made) of each look."""
    return tuple((look.at, look.at - _step_time(looks[: n + 1])) for n, look in enumerate(looks))


def draw_lag(record: RunRecord) -> Chart | None:
    """How far storage was behind; None where no checkpoint ever became durable."""
    if all(look.durable_step is None for look in record.looks):
        return None
    found = durable_lags(record.looks)
    worst = max(seconds for _, seconds in found)
    curve = Curve(found, "lag", f"at most {number_text.seconds(worst)} behind")
    durable = [
        Marker(event.at, "durable", event.message)
        for event in record.events
        if event.reason == names.EVENT_DURABLE
    ]
    words = Labels(
        "lag",
        "Durable lag (s)",
        "What would have to be made again if all memory were lost at once: time since the newest "
        f"step on storage was made, at most {number_text.seconds(worst)}. Lines: a step became "
        "durable (told at most every 10 s).",
        (("lag", "behind"), ("durable", "durable on storage")),
    )
    content = ChartData(markers=durable, curves=(curve,))
    return charts.draw_chart(words, content, period=event_parsing.time_range(record))


def _step_time(looks: Sequence[ProgressSample]) -> float:
    """When the step that the newest look calls durable was made, between the looks around it."""
    durable = looks[-1].durable_step or 0
    for earlier, later in zip(looks[-2::-1], looks[:0:-1], strict=True):
        if earlier.step <= durable:
            made = later.step - earlier.step
            share = min(1.0, (durable - earlier.step) / made) if made > 0 else 1.0
            return earlier.at + share * (later.at - earlier.at)
    return looks[0].at if looks[0].step > durable else looks[-1].at
