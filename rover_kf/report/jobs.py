# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The live view's first page: all jobs in a table, each with the address of its own page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.report import page
from rover_kf.report.page import Live


@dataclasses.dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the table."""

    job: str
    address: str
    """Of its page, on the same server."""
    cells: tuple[str, ...]
    """What stands beside its name."""
    bad: bool = False


def render(rows: Sequence[JobRow], *, columns: Sequence[str], place: str, live: Live) -> str:
    """Render the page.

    Args:
        rows: jobs as they are shown.
        columns: what the cells are, the job's name first.
        place: where the jobs are, one sentence.
        live: how the page follows them.
    """
    template = page.environment().get_template("jobs.html.j2")
    return template.render(rows=rows, columns=columns, place=place, live=live)
