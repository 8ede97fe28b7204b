# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A recommendation as text for a terminal; pure."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from rover_kf.api.decisions import Cost, Proposal, Quantity, Recommendation

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def amount(value: float, unit: str) -> str:
    """A number with its unit, bytes in powers of 1024."""
    if unit in ("bytes", "B", "bytes/s"):
        power = 0
        while abs(value) >= _STEP and power < len(_UNITS) - 1:
            value, power = value / _STEP, power + 1
        return f"{value:.4g} {_UNITS[power]}{'/s' if unit == 'bytes/s' else ''}"
    return f"{value:.4g} {unit}".strip()


def tables(found: Recommendation) -> list[RenderableType]:
    """All of it: sizes, other ways to train, cost, what could not be looked at."""
    parts: list[RenderableType] = [table(found)]
    if found.proposals:
        parts.append(_proposals(found.proposals))
    if found.cost is not None:
        parts.append(cost_line(found.cost))
    parts += [f"note: {note}" for note in found.notes]
    return parts


def table(found: Recommendation) -> Table:
    """Sizes with their intervals and where they come from."""
    made = Table("size", "target", "between", "from", "why", title=f"sizes for {found.job}")
    for item in found.quantities:
        made.add_row(
            item.name, amount(item.target, item.unit), _between(item), _basis(item), item.why
        )
    return made


def lines(found: Recommendation) -> list[str]:
    """The same, one line a size."""
    return [
        f"recommend {item.name}: {amount(item.target, item.unit)} ({_between(item)}; "
        f"{_basis(item)}): {item.why}"
        for item in found.quantities
    ]


def cost_line(cost: Cost) -> str:
    """What it costs, in one line."""
    unit = f" {cost.currency}".rstrip()
    total = "" if cost.total is None else f", {cost.total:.2f}{unit} for the run"
    return (
        f"cost: {cost.per_hour:.2f}{unit} an hour ({cost.lower:.2f} to {cost.upper:.2f}){total}: "
        f"{cost.why}"
    )


def _proposals(found: tuple[Proposal, ...]) -> Table:
    made = Table("strategy", "precision", "accumulate", "batch", "memory", "step", "why")
    for one in found:
        made.add_row(
            one.strategy,
            one.precision,
            str(one.accumulation),
            str(one.batch),
            amount(one.memory, "bytes"),
            f"{one.step_seconds:.3g} s" if one.step_seconds else "not known",
            one.why,
        )
    return made


def _between(item: Quantity) -> str:
    return f"{amount(item.lower, item.unit)} to {amount(item.upper, item.unit)}"


def _basis(item: Quantity) -> str:
    return f"{item.basis}, {item.effective_samples:.3g} samples"
