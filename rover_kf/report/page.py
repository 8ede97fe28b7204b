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

from rover_kf.api.data import DataStatus
from rover_kf.api.decisions import Recommendation
from rover_kf.api.records import RunRecord
from rover_kf.report import charts, event_parsing, number_text, report_sections, run_charts
from rover_kf.report.charts import Chart

NEWEST = 10


def summary(record: RunRecord) -> str:
    """Summarise a run in Markdown; its texts are escaped and stay on one line."""
    job = record.signature
    lines = [
        f"# {_plain(job.kind)} {_plain(job.namespace)}/{_plain(job.name)}",
        "",
        _plain(report_sections.verdict(record)),
        "",
        "| | |",
        "|---|---|",
        *(
            f"| {_plain(name)} | {_plain(value)} |"
            for name, value in report_sections.figures(record)
        ),
    ]
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
    return (
        f"{data.name}: {share}epoch {data.epoch + 1}{aside}; used by {report_sections.shares(data)}"
    )


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
    """What stands beside its name."""
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
    parts = report_sections.goodput(record)
    expected = run_charts.expect_rates(record.windows)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            record=record,
            written=record.updated_at if now is None else now,
            start=event_parsing.time_range(record)[0],
            figures=report_sections.figures(record),
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
            sections=report_sections,
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
