# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf recommend``: sizes for a job, and why. Nothing is created by it."""

from __future__ import annotations

import pathlib
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from rover_kf import errors
from rover_kf.api.decisions import Cost, Proposal, Quantity, Recommendation
from rover_kf.cli.options import FILE, PATH, with_client
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.client import RoverClient
from rover_kf.client.script_jobs import DryRun
from rover_kf.injection import quantities
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable

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
        f"({_format_interval(item)}; {_format_basis(item)}): {item.why}"
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


@click.command()
@FILE
@FORMAT
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--dry-run", is_flag=True, help="Run the job's script here for a few steps first.")
@click.option("--fake", is_flag=True, help="Dry run with shapes only: a model too large for here.")
@click.option("--batch-option", default="", help="The script's argument for its batch.")
@click.option("--steps", default=6, show_default=True, help="Of a dry run, at each batch.")
@click.option("--prices", type=PATH, help="YAML of an hour's prices.")
@click.option("--max-replicas", type=click.IntRange(1), help="Worker replicas at most.")
@click.option("--max-cpu", help="Of one replica, such as 4 or 500m.")
@click.option("--max-memory", help="Of one replica, such as 16Gi.")
@click.option("--accelerator-memory", help="Of one device, such as 16Gi.")
@click.option("--network", help="Bytes a second between two nodes, such as 10G.")
@click.option("--parameters", help="Of the model, such as 7G, where nothing else tells.")
@click.option("--trained", help="Of these parameters, those that are trained (LoRA), such as 20M.")
@click.option("--value-of-time", default=2.0, show_default=True, help="2 minds cost, 8 a deadline.")
@with_client
def recommend(rover: RoverClient, /, file: pathlib.Path, **given: Any) -> None:
    """Say which sizes to ask for, how sure that is, why, and what they cost."""
    prices = PriceTable.read(given["prices"]) if given["prices"] else None
    tried = None
    if given["dry_run"] or given["fake"]:
        tried = DryRun(given["steps"], batch_option=given["batch_option"], fake=given["fake"])
    limits = Constraints(
        max_replicas=given["max_replicas"],
        max_cpu=_parse_amount("--max-cpu", given["max_cpu"]),
        max_memory=_parse_amount("--max-memory", given["max_memory"]),
        accelerator_memory=_parse_amount("--accelerator-memory", given["accelerator_memory"]),
        network_bytes_per_second=_parse_amount("--network", given["network"]),
        value_of_time=given["value_of_time"],
    )
    found = rover.recommend(
        file,
        dry_run=tried,
        constraints=limits,
        prices=prices,
        parameters=_parse_amount("--parameters", given["parameters"]),
        trained=_parse_amount("--trained", given["trained"]),
    )
    form = "json" if given["as_json"] else given["output"]
    print_value(found, form, *render_recommendation(found))


def _parse_amount(option: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = float(quantities.parse(value))
    except ValueError as cause:
        raise errors.InputError(f"{option} is {value!r}; allowed: such as 500m or 4Gi") from cause
    if found <= 0:
        raise errors.InputError(f"{option} is {value!r}; allowed: more than 0")
    return found
