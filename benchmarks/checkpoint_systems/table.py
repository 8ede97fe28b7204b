# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report as a Markdown table."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    "first_ms": "first save",
    "warm_ms": "save (median)",
    "warm_p95_ms": "save (p95)",
    "warm_over_floor": "save / floor",
    "step_added_ms": "next step longer by",
    "durable_ms": "durable",
    "capped_ms": "durable under its cap",
    "restore_ms": "restore",
    "step_inflation": "steps slower while persisting",
    "peak_memory_mib": "extra memory, MiB",
}


def markdown(state: str, report: dict[str, Any]) -> str:
    """One size's table, milliseconds.

    Args:
        state: what was saved, for the title.
        report: of that size.
    """
    floors = (
        f"Floors: copy {report['floor_copy_ms']}, prefault {report['floor_prefault_ms']}, "
        f"synced file {report['floor_persist_ms']}."
    )
    head = ["system", *COLUMNS.values()]
    lines = [f"{state}, milliseconds. {floors}", "", _row(head), _row(["---"] * len(head))]
    for name, found in report["systems"].items():
        if "skipped" in found:
            lines.append(_row([name, f"skipped: {found['skipped']}", *[""] * (len(COLUMNS) - 1)]))
        else:
            lines.append(_row([name, *(_cell(key, found.get(key)) for key in COLUMNS)]))
    return "\n".join([*lines, "", *_memory(report)])


def _memory(report: dict[str, Any]) -> list[str]:
    """What of rover-kf's memory goes with the state, and what does not."""
    return [
        f"Extra memory of {name}: {_held(found, report)}"
        for name, found in report["systems"].items()
        if "slots_mib" in found
    ]


def _held(found: dict[str, Any], report: dict[str, Any]) -> str:
    state, slots, sidecar = report["state_mib"], found["slots_mib"], found["sidecar_mib"]
    rest = found["peak_memory_mib"] - slots - sidecar
    return (
        f"{slots / state:.3f} states in two slots, {sidecar:g} MiB of the sidecar's processes, "
        f"{rest:+.1f} MiB in the training process and by chance."
    )


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if key == "step_inflation" else f"{value:g}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
