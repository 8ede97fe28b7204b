# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values as Markdown, for pipeline steps and notebooks; pure."""

from __future__ import annotations

from rover_kf.api.decisions import Recommendation


def recommendation(found: Recommendation) -> str:
    """A table of sizes with their intervals, where they come from and why."""
    rows = [
        f"| {item.name} | {item.target:g} {item.unit} | {item.lower:g} to {item.upper:g} "
        f"| {item.basis} | {item.why} |"
        for item in found.quantities
    ]
    head = ["| size | target | between | from | why |", "|---|---|---|---|---|"]
    return "\n".join([f"### Sizes for {found.job}", "", *head, *rows, ""])
