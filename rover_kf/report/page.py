# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML file that needs nothing else, by mail or from an artifact store.

Called by client, pipeline components and the live view. Everything shown comes from the record;
every text of it is escaped by the template engine, which is set to do so for all templates.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import jinja2

from rover_kf.api import names
from rover_kf.api.data import DataStatus
from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import Event
from rover_kf.api.records import RunRecord
from rover_kf.report import charts, event_parsing, number_text, run_charts
from rover_kf.report.charts import Chart

NEWEST = 10
NODES = (
    names.EVENT_STRAGGLER,
    names.EVENT_STRAGGLER_REPLACED,
    names.EVENT_PREFLIGHT,
    names.EVENT_NODE_CHECK_FAILED,
    names.EVENT_NODE_AVOIDED,
    names.EVENT_NODE_AVOIDANCE_ENDED,
    names.EVENT_NODE_CORDONED,
)
"""Events about pods and nodes that hold others up."""
SAVES = (names.EVENT_DURABLE, names.EVENT_RESTORED, names.EVENT_CHECKPOINT_WARNING)
NEWEST_SAVES = 20
"""Shown beside the drawing; all are among the Events."""


def summary(record: RunRecord) -> str:
    """Summarise a run in Markdown; its texts are escaped and stay on one line."""
    job = record.signature
    title = f"# {_plain(job.kind)} {_plain(job.namespace)}/{_plain(job.name)}"
    lines = [title, "", _plain(verdict(record)), "", "| | |", "|---|---|"]
    lines += [f"| {_plain(name)} | {_plain(value)} |" for name, value in figures(record)]
    changes = [item for item in record.decisions if item.action != "stay"]
    if changes:
        lines += ["", "## Changes of replicas", ""]
        lines += [f"- {item.change}: {_plain(item.reason)}" for item in changes]
    if record.data:
        lines += ["", "## Data", ""]
        lines += [f"- {_plain(_read(data))}" for data in record.data]
    if record.events:
        lines += ["", "## Newest events", ""]
        for event in record.events[-NEWEST:]:
            when = number_text.since(event.at, record.started_at)
            lines.append(f"- {when} **{_plain(event.reason)}** {_plain(event.message)}")
    return "\n".join(lines) + "\n"


def _read(data: DataStatus) -> str:
    aside = f", {data.poisoned} set aside" if data.poisoned else ""
    share = f"{number_text.share(data.done / data.slots)} of " if data.slots else ""
    return f"{data.name}: {share}epoch {data.epoch + 1}{aside}; used by {shares(data)}"


def _plain(given: str) -> str:
    """Text with Markdown's and HTML's characters made harmless."""
    one_line = " ".join(given.split())
    escaped = re.sub(r"([\\`*_{}\[\]()#!|~])", r"\\\1", one_line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclasses.dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the table."""

    job: str
    address: str
    """Of its page, on the same server."""
    cells: tuple[str, ...]
    bad: bool = False


def render_jobs(
    rows: Sequence[JobRow], *, columns: Sequence[str], caption: str, live: LiveOptions
) -> str:
    """Render the page of jobs; each column but the first is a cell of a row."""
    template = environment().get_template("jobs.html.j2")
    return template.render(rows=rows, columns=columns, place=caption, live=live)


def render_comparison(
    title: str, about: str, table: Sequence[Sequence[str]], drawings: Sequence[Chart]
) -> str:
    """Render the page that compares policies, with a drawing for each.

    The table is a header, then rows of cells as they are shown; the first one names the row.
    """
    template = environment().get_template("comparison.html.j2")
    page = {"title": title, "about": about, "columns": table[0], "rows": table[1:]}
    return template.render(page=page, charts=drawings, live=None, **chart_frame())


@dataclasses.dataclass(frozen=True, slots=True)
class LiveOptions:
    """A page that is shown by a server, and brings itself up to date."""

    seconds: float
    """Between two looks."""
    nonce: str
    """That the server's Content-Security-Policy lets the script run by."""


def render(
    record: RunRecord,
    *,
    now: float | None = None,
    recommendation: Recommendation | None = None,
    live: LiveOptions | None = None,
) -> str:
    """Render a run, also one that still runs, as a self-contained HTML page.

    Args:
        record: the run.
        now: Unix seconds, shown as the time of writing; the record's own by default.
        recommendation: for the next run of the job.
        live: how the page follows the run; None: it is a file, without any script.
    """
    parts = goodput(record)
    expected = run_charts.expect_rates(record.windows)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            record=record,
            written=record.updated_at if now is None else now,
            start=event_parsing.time_range(record)[0],
            figures=figures(record),
            rounds=event_parsing.read_rounds(record),
            timeline=run_charts.draw_timeline(record),
            throughput=run_charts.draw_throughput(record, expected),
            expected=expected,
            unit=run_charts.rate_unit(record.windows),
            stall=run_charts.draw_stalls(record),
            lag=run_charts.draw_lag(record),
            memory=run_charts.draw_memory(record),
            memory_rows=run_charts.memory_rows(record),
            goodput=parts,
            goodput_bars=charts.stack_bars(parts),
            recommendation=recommendation,
            verdict=verdict(record),
            saves=saves(record),
            slow_ranks=slow_ranks(record),
            about_nodes=about_nodes(record),
            shares=shares,
            text=number_text,
            live=live,
            **chart_frame(),
        )
    )


def environment() -> jinja2.Environment:
    """Templates of this package; all that they show is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("rover_kf", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def chart_frame() -> dict[str, int]:
    """Edges of a drawing, as the template of drawings calls them."""
    return {
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
        "ground": charts.HEIGHT - charts.BOTTOM,
        "left": charts.LEFT,
        "right": charts.WIDTH - charts.RIGHT,
        "top": charts.TOP,
    }


def goodput(record: RunRecord) -> tuple[tuple[str, str, float], ...]:
    """(class, words, seconds) of what the job's time was spent on."""
    spent = record.goodput
    return (
        ("productive", "training", spent.productive),
        ("checkpoint", "blocked by saves", spent.checkpoint),
        ("redone", "steps made again after a failure", spent.redone),
        ("recovery", "recovery from failures", spent.recovery),
        ("rendezvous", "coming together after a failure", spent.rendezvous),
        ("scaling", "changes of the world", spent.scaling),
        ("waiting", "waiting for pods and first start", spent.waiting),
    )


def figures(record: RunRecord) -> tuple[tuple[str, str], ...]:
    """The run in a few numbers."""
    total = f" of {record.total_steps}" if record.total_steps is not None else ""
    start, end = event_parsing.time_range(record)
    measured = bool(record.goodput.total)
    saved = bool(record.snapshot_bytes)
    return (
        ("lasted", number_text.seconds(end - start)),
        ("steps", f"{record.steps}{total}" if record.steps else number_text.UNKNOWN),
        (
            "goodput",
            number_text.share(record.goodput.fraction) if measured else number_text.UNKNOWN,
        ),
        ("restarts in place", str(record.restarts)),
        ("last change of the world took", number_text.measured_seconds(record.restart_seconds)),
        ("snapshot of one rank", number_text.size(record.snapshot_bytes)),
        (
            "a save blocked for",
            number_text.seconds(record.save_seconds) if saved else number_text.UNKNOWN,
        ),
        ("saved every", f"{record.checkpoint_every} steps" if record.checkpoint_every else "-"),
        ("memory asked for, a replica", number_text.size(record.requested.get("memory"))),
        ("memory used, worst pod", number_text.size(record.peak.get("memory"))),
        ("CPU asked for, a replica", number_text.number(record.requested.get("cpu"), "cores")),
        ("CPU used, worst pod", number_text.number(record.peak.get("cpu"), "cores")),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the others waited for, by all that was told of it."""

    rank: int
    times: int
    first: float
    last: float
    """Unix seconds."""
    newest: str
    """What was told last."""


def slow_ranks(record: RunRecord) -> tuple[SlowRank, ...]:
    """Those told most often first."""
    told: dict[int, list[Event]] = {}
    for event in record.events:
        rank = event_parsing.event_rank(event)
        if event.reason == names.EVENT_STRAGGLER and rank is not None:
            told.setdefault(rank, []).append(event)
    found = [
        SlowRank(rank, len(events), events[0].at, events[-1].at, events[-1].message)
        for rank, events in told.items()
    ]
    return tuple(sorted(found, key=lambda rank: (-rank.times, rank.rank)))


def about_nodes(record: RunRecord) -> tuple[Event, ...]:
    """What was told of slow or unfit pods and nodes, and done about them."""
    return tuple(event for event in record.events if event.reason in NODES)


def saves(record: RunRecord) -> tuple[Event, ...]:
    """The newest of what was told of checkpoints."""
    return tuple(event for event in record.events if event.reason in SAVES)[-NEWEST_SAVES:]


def shares(data: DataStatus) -> str:
    """What each rank has used of what all have."""
    whole = sum(share.used for share in data.workers)
    told = (
        f"rank {one.rank} {number_text.share(one.used / whole)}" for one in data.workers if one.used
    )
    return ", ".join(told) or number_text.UNKNOWN


def verdict(record: RunRecord) -> str:
    """One sentence on how the run ended."""
    ended = {
        "succeeded": "The run succeeded.",
        "failed": "The run failed.",
        "deleted": "The job was deleted before it ended.",
        "running": "The run has not ended yet.",
    }
    return f"{ended.get(record.outcome, record.outcome)} {record.verdict}".strip()
