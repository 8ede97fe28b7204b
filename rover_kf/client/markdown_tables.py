# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values as Markdown, for pipeline steps and notebooks; pure."""

from __future__ import annotations

from rover_kf.api.decisions import Recommendation


def format_recommendation(recommendation: Recommendation) -> str:
    """A table of sizes with their intervals, where they come from and why."""
    rows = [
        f"| {item.name} | {item.target:g} {item.unit} | {item.lower:g} to {item.upper:g} "
        f"| {item.basis} | {item.why} |"
        for item in recommendation.quantities
    ]
    head = ["| size | target | between | from | why |", "|---|---|---|---|---|"]
    parts = [f"### Sizes for {recommendation.job}", "", *head, *rows, ""]
    parts += [
        f"- or {one.strategy} {one.precision}, {one.accumulation} micro-batches of {one.batch}: "
        f"{one.why}"
        for one in recommendation.proposals
    ]
    if recommendation.cost is not None:
        cost = recommendation.cost
        parts.append(f"- {cost.per_hour:.2f} {cost.currency} an hour: {cost.why}")
    return "\n".join([*parts, *(f"- {note}" for note in recommendation.notes), ""])
