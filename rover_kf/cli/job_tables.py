# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and runs as tables for a terminal; pure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from rover_kf.api.jobs import ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.client import Progress
from rover_kf.client.manifests import format_name
from rover_kf.client.progress_text import format_step, format_time

COLUMNS = (
    "namespace", "job",
    "phase", "replicas", "step", "samples/s", "in memory", "durable", "restarts", "goodput",
)  # fmt: skip


def status_cells(item: Progress) -> tuple[str, ...]:
    """One for each of COLUMNS."""
    total = f"/{item.total_steps}" if item.total_steps else ""
    spent = item.goodput
    return (
        item.namespace,
        format_name(item.key),
        item.activity or item.phase or "New",
        f"{item.running}/{item.replicas}",
        f"{item.step}{total}",
        f"{item.samples_per_second:.0f}",
        format_step(item.sealed_step),
        format_step(item.durable_step),
        str(item.restarts),
        f"{spent.fraction:.0%}" if spent is not None and spent.total else "-",
    )


def has_failed(item: Progress) -> bool:
    """Whether it has ended badly."""
    return item.phase == "Failed" or item.activity == "failed"


def job_table(jobs: Iterable[ObservedJob]) -> Table:
    """Jobs, one a row."""
    table = Table("namespace", "name", "phase", "replicas", "created", box=None)
    for job in jobs:
        replicas = ", ".join(f"{count} {kind}" for kind, count in job.replicas.items())
        created = format_time(job.created_at)
        table.add_row(job.key.namespace, format_name(job.key), job.phase or "-", replicas, created)
    return table


def run_table(records: Iterable[RunRecord]) -> Table:
    """Runs, one a row."""
    table = Table("run", "job", "outcome", "steps", "restarts", "goodput", "started", box=None)
    for record in records:
        started = format_time(record.started_at)
        name = f"{record.signature.namespace}/{record.signature.name}"
        steps = str(record.steps)
        goodput = f"{record.goodput.fraction:.0%}"
        row = (record.uid[:8], name, record.outcome, steps, str(record.restarts), goodput, started)
        table.add_row(*row)
    return table
