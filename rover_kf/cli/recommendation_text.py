# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A recommendation as text for a terminal; pure."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from rover_kf.api.decisions import Cost, Proposal, Quantity, Recommendation

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def format_amount(value: float, unit: str) -> str:
    """A number with its unit, bytes in powers of 1024."""
    if unit in ("bytes", "B", "bytes/s"):
        power = 0
        while abs(value) >= _STEP and power < len(_UNITS) - 1:
            value, power = value / _STEP, power + 1
        return f"{value:.4g} {_UNITS[power]}{'/s' if unit == 'bytes/s' else ''}"
    return f"{value:.4g} {unit}".strip()


def render_recommendation(recommendation: Recommendation) -> list[RenderableType]:
    """All of it: sizes, other ways to train, cost, what could not be looked at."""
    parts: list[RenderableType] = [size_table(recommendation)]
    if recommendation.proposals:
        parts.append(_proposal_table(recommendation.proposals))
    if recommendation.cost is not None:
        parts.append(format_cost(recommendation.cost))
    parts += [f"note: {note}" for note in recommendation.notes]
    return parts


def size_table(recommendation: Recommendation) -> Table:
    """Sizes with their intervals and where they come from."""
    made = Table(
        "size", "target", "between", "from", "why", title=f"sizes for {recommendation.job}"
    )
    for item in recommendation.quantities:
        made.add_row(
            item.name,
            format_amount(item.target, item.unit),
            _format_interval(item),
            _format_basis(item),
            item.why,
        )
    return made


def format_lines(recommendation: Recommendation) -> list[str]:
    """The same, one line a size."""
    return [
        f"recommend {item.name}: {format_amount(item.target, item.unit)} "
        f"({_format_interval(item)}; "
        f"{_format_basis(item)}): {item.why}"
        for item in recommendation.quantities
    ]


def format_cost(cost: Cost) -> str:
    """What it costs, in one line."""
    unit = f" {cost.currency}".rstrip()
    total = "" if cost.total is None else f", {cost.total:.2f}{unit} for the run"
    return (
        f"cost: {cost.per_hour:.2f}{unit} an hour ({cost.lower:.2f} to {cost.upper:.2f}){total}: "
        f"{cost.why}"
    )


def _proposal_table(proposals: tuple[Proposal, ...]) -> Table:
    made = Table("strategy", "precision", "accumulate", "batch", "memory", "step", "why")
    for one in proposals:
        made.add_row(
            one.strategy,
            one.precision,
            str(one.accumulation),
            str(one.batch),
            format_amount(one.memory, "bytes"),
            f"{one.step_seconds:.3g} s" if one.step_seconds else "not known",
            one.why,
        )
    return made


def _format_interval(item: Quantity) -> str:
    return f"{format_amount(item.lower, item.unit)} to {format_amount(item.upper, item.unit)}"


def _format_basis(item: Quantity) -> str:
    return f"{item.basis}, {item.effective_samples:.3g} samples"
