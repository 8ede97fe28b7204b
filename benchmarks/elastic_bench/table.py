# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown tables; pure."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    "seconds": "all step again, s",
    "survivors_seconds": "survivors step again, s",
    "pause_seconds": "longest pause, s",
    "steps_lost": "steps done again",
}
SIDES = ("stock", "rover")


def markdown(report: dict[str, Any]) -> str:
    """All of it; stock and rover-kf beside each other, divided by a slash."""
    lines = [_row(["action", *COLUMNS.values(), "repeats"]), _row(["---"] * (len(COLUMNS) + 2))]
    for name, found in report["actions"].items():
        cells = [" / ".join(_cell(found, f"{side}_{key}") for side in SIDES) for key in COLUMNS]
        lines.append(_row([name, *cells, f"{found['repeats']}"]))
    for name in ("standalone", "goodput"):
        told = ", ".join(f"{side} {value:g}" for side, value in report[name].items())
        lines += ["", f"{name}: {told or 'not measured'}"]
    return "\n".join(lines)


def _cell(found: dict[str, float], key: str) -> str:
    return f"{found[key]:.4g}" if key in found else "-"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
