# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf simulate``: how policies would share a cluster, on measured tables."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rover_kf import errors
from rover_kf.cli.options import PATH
from rover_kf.cli.output import print_parts
from rover_kf.client import manifests
from rover_kf.report import number_text
from rover_kf.report.charts import Chart, ChartData, ChartSpan, Labels, draw_chart
from rover_kf.report.page import render_comparison

if TYPE_CHECKING:
    from rover_kf.simulation.cluster_simulation import FleetOutcome

COLUMNS = (
    "policy",
    "average completion",
    "p99 completion",
    "last job ended",
    "replica-hours",
    "restarts a job",
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--workload", help="One of the folder's [default: its first].")
@click.option("--policies", default="rover,static,tiresias,optimus", show_default=True)
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(min=1))
@click.option("--restart", default=30.0, show_default=True, help="Seconds that a change costs.")
@click.option("--failures", default=0.0, show_default=True, help="Of a node, a day.")
@click.option("-o", "--output", type=PATH, help="HTML to write.")
def simulate(
    folder: pathlib.Path,
    workload: str | None,
    policies: str,
    nodes: int,
    restart: float,
    failures: float,
    output: pathlib.Path | None,
) -> None:
    """Run a workload of jobs under several policies, by measured step times.

    FOLDER holds a model's placements.csv and validation-*.csv a folder, and workloads/*.csv;
    docs/scaling.md says what is in them.
    """
    # Its interpolation and solvers take longer to load than all other verbs need.
    from rover_kf.simulation import fleet_policies, traces  # noqa: PLC0415

    found = traces.read(folder)
    names = _check_names(policies.split(","), list(fleet_policies.FLEET_POLICIES), "policy")
    loads = fleet_policies.runnable(found)
    if not loads:
        raise errors.InputError(
            f"{folder} holds no workload all of whose models have tables and work; allowed: "
            "workloads/*.csv that name folders with placements.csv and validation-*.csv"
        )
    (name,) = _check_names([workload or loads[0]], loads, "workload")
    shape = dataclasses.replace(
        fleet_policies.shape_for(found, restart, nodes), node_failures_a_day=failures
    )
    outcomes = {
        policy: runs[0]
        for policy, runs in fleet_policies.fleet(found, shape, [name], names).items()
    }
    rows = tuple(_row(policy, outcome) for policy, outcome in outcomes.items())
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    print_parts(table)
    if output is not None:
        about = (
            f"{len(found.workloads[name])} jobs of {name} on {nodes} nodes of {shape.per_node} "
            f"replicas; a change costs {number_text.seconds(restart)}, "
            f"a node fails {failures:g} times a day."
        )
        drawings = tuple(_make_chart(policy, outcome) for policy, outcome in outcomes.items())
        title = f"{name}: policies compared"
        page = render_comparison(title, about, (COLUMNS, *rows), drawings)
        manifests.write_text(output, page)


def _check_names(requested: list[str], allowed: list[str], kind: str) -> list[str]:
    unknown = [name for name in requested if name not in allowed]
    if unknown:
        raise errors.InputError(f"no {kind} {unknown[0]!r}; allowed: {', '.join(allowed)}")
    return requested


def _row(policy: str, outcome: FleetOutcome) -> tuple[str, ...]:
    return (
        policy,
        number_text.seconds(outcome.average_seconds),
        number_text.seconds(outcome.p99_seconds),
        number_text.seconds(outcome.makespan_seconds),
        f"{outcome.replica_hours:.0f}",
        f"{outcome.restarts:.1f}",
    )


def _make_chart(policy: str, outcome: FleetOutcome) -> Chart:
    spans = [
        ChartSpan(start, end, count, "node", f"{count} replicas")
        for start, end, count in outcome.in_use
    ]
    words = Labels(
        f"in-use-{policy}",
        f"{policy}: replicas in use",
        "Replicas that jobs had, from the first arrival to the last end.",
        (("node", "replicas"),),
    )
    return draw_chart(words, ChartData(spans), period=(0.0, outcome.makespan_seconds))
