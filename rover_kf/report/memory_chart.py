# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the worst pod against what a trainer may use; pure."""

from __future__ import annotations

from rover_kf.api.records import RunRecord
from rover_kf.report import charts, event_parsing, number_text
from rover_kf.report.charts import ChartData, Curve, Labels
from rover_kf.report.svg_shapes import Chart

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
    content = ChartData(curves=curves, markers=event_parsing.make_markers(record, "bad"))
    return charts.draw_chart(words, content, period=event_parsing.time_range(record))


def rows(record: RunRecord) -> tuple[tuple[str, str, str], ...]:
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
