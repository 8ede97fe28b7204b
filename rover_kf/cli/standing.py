# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a job stands as the cells of a row, for ``rover-kf top`` and its live view; pure."""

from __future__ import annotations

from rover_kf.client import Progress
from rover_kf.client.job_name import called

COLUMNS = (
    "namespace", "job",
    "phase", "replicas", "step", "samples/s", "in memory", "durable", "restarts", "goodput",
)  # fmt: skip


def cells(item: Progress) -> tuple[str, ...]:
    """One for each of COLUMNS."""
    total = f"/{item.total_steps}" if item.total_steps else ""
    spent = item.goodput
    return (
        item.namespace,
        called(item.key),
        item.activity or item.phase or "New",
        f"{item.running}/{item.replicas}",
        f"{item.step}{total}",
        f"{item.samples_per_second:.0f}",
        _step(item.sealed_step),
        _step(item.durable_step),
        str(item.restarts),
        f"{spent.fraction:.0%}" if spent is not None and spent.total else "-",
    )


def failed(item: Progress) -> bool:
    """Whether it has ended badly."""
    return item.phase == "Failed" or item.activity == "failed"


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)
