# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report's drawings of a run: ranks, throughput, checkpoints and memory by time; pure.

The throughput to be expected of a world comes from the model that also decides
(rover_kf.scaling.throughput), fitted to nothing but the windows before the world's first one.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from rover_kf.api import names
from rover_kf.api.records import ProgressSample, RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.report import event_parsing, number_text
from rover_kf.report.charts import Chart, ChartData, ChartSpan, Curve, Dot, Labels, Mark, draw_chart
from rover_kf.scaling import throughput

MERGE_SECONDS = 1.0
"""Windows of one world that lie no further apart are drawn as one."""


def draw_timeline(record: RunRecord) -> Chart:
    """Each rank a row; where there are many ranks, as many rows high."""
    formed = []
    for world in event_parsing.read_rounds(record):
        title = f"round {world.number}: {world.processes} ranks in {world.pods} pods"
        formed.append(ChartSpan(world.start, world.end, world.processes, "formed", title))
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
        marks=event_parsing.make_markers(record, "bad", "round", "change"),
        dots=_event_dots(record),
        integral=True,
    )
    return draw_chart(words, content, period=event_parsing.time_range(record))


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


def _event_dots(record: RunRecord) -> list[Dot]:
    """Failures and stragglers at the rank that their Event names."""
    found = []
    for event in record.events:
        rank = event_parsing.event_rank(event)
        if event.at and rank is not None and event_parsing.event_class(event) in ("bad", "slow"):
            title = f"{event.reason}: {event.message}"
            found.append(Dot(event.at, rank + 0.5, event_parsing.event_class(event), title))
    return found


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


def rate_unit(windows: Sequence[Throughput]) -> str:
    """What rates are counted in."""
    return "samples/s" if any(window.global_batch for window in windows) else "steps/s"


def rate_before_raise(window: Throughput, counted: str) -> float:
    """Of a window, in that unit."""
    if counted == "samples/s":
        return window.samples_per_second
    return 1 / window.step_seconds if window.step_seconds else 0.0


def expect_rates(windows: Sequence[Throughput]) -> tuple[ThroughputExpectation, ...]:
    """For each world but the first, in the order of time."""
    counted = rate_unit(windows)
    found, before = [], 0
    stretches = [
        list(group) for _, group in itertools.groupby(windows, lambda each: each.world_size)
    ]
    for number, group in enumerate(stretches):
        earlier, before = windows[:before], before + len(group)
        model = throughput.fit(earlier) if number >= max(1, len(stretches) - MAX_WORLDS) else None
        if model is None or group[0].world_size < 1:
            continue
        told = model.predict(group[0].world_size)
        world = (group[0].started_at, group[-1].ended_at, told.world_size)
        predicted = (told.samples_per_second, told.lower, told.upper)
        came = statistics.median(rate_before_raise(window, counted) for window in group)
        found.append(ThroughputExpectation(*world, *predicted, came, told.measured))
    return tuple(found)


def draw_throughput(record: RunRecord, expectations: Sequence[ThroughputExpectation]) -> Chart:
    """Windows as boxes, expectations as bands with a line."""
    counted = rate_unit(record.windows)
    spans = []
    for window in record.windows:
        rate = rate_before_raise(window, counted)
        title = f"{number_text.number(rate, counted)} of {window.world_size} ranks"
        spans.append(ChartSpan(window.started_at, window.ended_at, rate, "rate", title))
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
    content = ChartData(spans=spans, marks=event_parsing.make_markers(record, "bad"), curves=curves)
    return draw_chart(words, content, period=event_parsing.time_range(record))


def draw_stalls(record: RunRecord) -> Chart:
    """Time blocked by saves, a minute of each window: of a long run they are not of one length."""
    spans = []
    for w in record.windows:
        blocked = w.save_seconds / max(w.ended_at - w.started_at, w.save_seconds, 1e-3)
        title = f"{number_text.seconds(w.save_seconds)} blocked by saves in {w.steps} steps"
        spans.append(ChartSpan(w.started_at, w.ended_at, 60_000 * blocked, "save", title))
    words = Labels(
        "checkpoints",
        "Checkpoints (ms blocked a minute)",
        "How long saving to memory held a minute of training up, by windows (slowest rank).",
        (("save", "blocked by saves"),),
    )
    return draw_chart(words, ChartData(spans), period=event_parsing.time_range(record))


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
        Mark(event.at, "durable", event.message)
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
    content = ChartData(marks=durable, curves=(curve,))
    return draw_chart(words, content, period=event_parsing.time_range(record))


def _step_time(looks: Sequence[ProgressSample]) -> float:
    """When the step that the newest look calls durable was made, between the looks around it."""
    durable = looks[-1].durable_step or 0
    for earlier, later in zip(looks[-2::-1], looks[:0:-1], strict=True):
        if earlier.step <= durable:
            made = later.step - earlier.step
            share = min(1.0, (durable - earlier.step) / made) if made > 0 else 1.0
            return earlier.at + share * (later.at - earlier.at)
    return looks[0].at if looks[0].step > durable else looks[-1].at


GIB = 1024.0**3


def draw_memory(record: RunRecord) -> Chart | None:
    """Use and limit by time; None where no use was told."""
    used = [(look.at, look.memory) for look in record.looks if look.memory]
    limits = [(look.at, look.memory_limit) for look in record.looks if look.memory_limit]
    if not used:
        return None
    highest = max(value for _, value in (*used, *limits))
    unit, of = ("GiB", GIB) if highest >= GIB else ("MiB", 1024.0**2)
    worst = number_text.size(max(value for _, value in used))
    curves = [Curve(_scale(used, of), "use", f"worst pod: at most {worst}")]
    if limits:
        now = number_text.size(limits[-1][1])
        curves.append(Curve(_to_steps(_scale(limits, of)), "limit", f"limit: {now} at last"))
    words = Labels(
        "memory",
        f"Memory ({unit})",
        f"What the trainer of the worst pod took, at most {worst} when it was looked at, and what "
        "it might use. Shared memory of checkpoints is not in it.",
        (("use", "worst pod"), ("limit", "limit"), ("bad", "failure")),
    )
    content = ChartData(curves=curves, marks=event_parsing.make_markers(record, "bad"))
    return draw_chart(words, content, period=event_parsing.time_range(record))


def memory_rows(record: RunRecord) -> tuple[tuple[str, str, str], ...]:
    """(what, size, share of the limit) for the table."""
    peak = record.peak.get("memory", 0.0)
    known = [look.memory_limit for look in record.looks if look.memory_limit]
    limit = max((record.memory_raised, *known[-1:]))
    raised = number_text.size(record.memory_raised) if record.memory_raised else "never"

    def share(value: float) -> str:
        return number_text.share(value / limit) if value and limit else "-"

    asked = record.requested.get("memory", 0.0)
    return (
        ("used at most, worst pod", number_text.size(peak), share(peak)),
        ("asked for, a replica", number_text.size(asked), share(asked)),
        ("limit, a replica", number_text.size(limit) if limit else "none known", share(limit)),
        ("raised after kills to", raised, share(record.memory_raised)),
    )


def _scale(values: list[tuple[float, float]], unit: float) -> tuple[tuple[float, float], ...]:
    return tuple((at, value / unit) for at, value in values)


def _to_steps(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """A limit holds until it is another."""
    found = [points[0]]
    for at, value in points[1:]:
        if value != found[-1][1]:
            found += [(at, found[-1][1]), (at, value)]
    return (*found, (points[-1][0], points[-1][1]))
