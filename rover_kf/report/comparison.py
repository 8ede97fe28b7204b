# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A page that sets policies side by side: a table and drawings, one HTML file."""

from __future__ import annotations

import dataclasses

from rover_kf.report import page
from rover_kf.report.shapes import Chart


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What the page shows."""

    title: str
    about: str
    """One sentence on what was run."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells as they are shown; the first one names the row."""
    drawings: tuple[Chart, ...]


def render(comparison: Comparison) -> str:
    """Render the page."""
    template = page.environment().get_template("comparison.html.j2")
    return template.render(page=comparison, **page.frame())
