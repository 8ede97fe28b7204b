# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline: ranks by time, with failures, rounds and changes of replicas; pure."""

from __future__ import annotations

from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.report import charts, event_parsing
from rover_kf.report.charts import ChartData, ChartSpan, Labels, Point
from rover_kf.report.svg_shapes import Chart

MERGE_SECONDS = 1.0
"""Windows of one world that lie no further apart are drawn as one."""


def draw_timeline(record: RunRecord) -> Chart:
    """Each rank a row; where there are many ranks, as many rows high."""
    formed = [
        ChartSpan(
            world.start,
            world.end,
            world.processes,
            "formed",
            f"round {world.number}: {world.processes} ranks in {world.pods} pods",
        )
        for world in event_parsing.read_rounds(record)
    ]
    words = Labels(
        "world",
        "World over time",
        "Each row is a rank. Pale: a round stands; full: its steps are steady enough to be "
        "measured. What is empty is start, recovery and waiting.",
        (
            ("node", "measured"),
            ("formed", "a round stands"),
            ("bad", "failure (dot: of this rank)"),
            ("round", "new round"),
            ("change", "replicas set"),
            ("slow", "straggler"),
        ),
    )
    content = ChartData(
        spans=(*formed, *_merge_windows(record.windows)),
        markers=event_parsing.make_markers(record, "bad", "round", "change"),
        points=_event_points(record),
        integral=True,
    )
    return charts.draw_chart(words, content, period=event_parsing.time_range(record))


def _merge_windows(windows: tuple[Throughput, ...]) -> list[ChartSpan]:
    """Windows of one world that follow each other as one box."""
    found: list[ChartSpan] = []
    for window in windows:
        title = f"{window.world_size} ranks in {window.nodes} pods"
        last = found[-1] if found else None
        near = last is not None and 0 <= window.started_at - last.end <= MERGE_SECONDS
        if last is not None and near and last.title == title:
            found[-1] = ChartSpan(last.start, window.ended_at, last.value, "node", title)
        else:
            found.append(
                ChartSpan(window.started_at, window.ended_at, window.world_size, "node", title)
            )
    return found


def _event_points(record: RunRecord) -> list[Point]:
    """Failures and stragglers at the rank that their Event names."""
    found = []
    for event in record.events:
        rank = event_parsing.event_rank(event)
        if event.at and rank is not None and event_parsing.event_class(event) in ("bad", "slow"):
            title = f"{event.reason}: {event.message}"
            found.append(Point(event.at, rank + 0.5, event_parsing.event_class(event), title))
    return found
