# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML file that needs nothing else, by mail or from an artifact store.

Called by client, pipeline components and the live view. Everything shown comes from the record;
every text of it is escaped by the template engine, which is set to do so for all templates.
"""

from __future__ import annotations

import dataclasses

import jinja2

from rover_kf.api.decisions import Recommendation
from rover_kf.api.records import RunRecord
from rover_kf.report import charts, memory, rates, saving, sections, story, text, world


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
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
    live: Live | None = None,
) -> str:
    """Render a run as a self-contained HTML page.

    Args:
        record: the run, also one that still runs.
        now: Unix seconds, shown as the time of writing; the record's own by default.
        recommendation: for the next run of the job, if one was asked for.
        live: how the page follows the run; None: it is a file, without any script.
    """
    parts = sections.goodput(record)
    expected = rates.expected(record.windows)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            record=record,
            written=record.updated_at if now is None else now,
            start=story.period(record)[0],
            figures=sections.figures(record),
            rounds=story.rounds(record),
            timeline=world.draw(record),
            throughput=rates.draw(record, expected),
            expected=expected,
            unit=rates.unit(record.windows),
            stall=saving.stall(record),
            lag=saving.lag(record),
            memory=memory.draw(record),
            memory_rows=memory.rows(record),
            goodput=parts,
            goodput_bars=charts.stacked(parts),
            recommendation=recommendation,
            sections=sections,
            text=text,
            live=live,
            **frame(),
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


def frame() -> dict[str, int]:
    """Edges of a drawing, as the template of drawings calls them."""
    return {
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
        "ground": charts.HEIGHT - charts.BOTTOM,
        "left": charts.LEFT,
        "right": charts.WIDTH - charts.RIGHT,
        "top": charts.TOP,
    }
