# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML file that needs nothing else, by mail or from an artifact store.

Called by client and pipeline components. Everything shown comes from the record; every text of it
is escaped by the template engine, which is set to do so for all templates.
"""

from __future__ import annotations

import jinja2

from rover_kf.api.decisions import Recommendation
from rover_kf.api.records import RunRecord
from rover_kf.report import charts, sections, text


def render(
    record: RunRecord, *, now: float | None = None, recommendation: Recommendation | None = None
) -> str:
    """Render a run as a self-contained HTML page.

    Args:
        record: the run, also one that still runs.
        now: Unix seconds, shown as the time of writing; the record's own by default.
        recommendation: for the next run of the job, if one was asked for.
    """
    parts = sections.goodput(record)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            record=record,
            written=record.updated_at if now is None else now,
            start=sections.period(record)[0],
            verdict=sections.verdict(record),
            figures=sections.figures(record),
            drawings=(
                sections.world(record),
                sections.throughput(record),
                sections.checkpoints(record),
            ),
            goodput=parts,
            goodput_bars=charts.stacked(parts),
            recommendation=recommendation,
            shares=sections.shares,
            text=text,
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
