# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of a made-up law: compute, a ring in a node, a slower ring between nodes."""

from __future__ import annotations

import csv
import itertools
import pathlib

from rover_kf.simulation.step_time_tables import StepTable, StepTimeRow

PER_NODE, NODES, BATCHES = 4, 4, (8, 16, 32, 64)


def step_seconds(hosts, ranks, batch, *, speed=1.0, network=0.02):
    ring = 2 * (ranks - 1) / ranks * (network / 4 if hosts == 1 else network)
    return (0.02 + 0.004 * batch) / speed + ring


def rows(**law):
    found = []
    for hosts in range(1, NODES + 1):
        for placement in itertools.combinations_with_replacement(range(1, PER_NODE + 1), hosts):
            ranks = sum(placement)
            for batch in BATCHES:
                whole = step_seconds(hosts, ranks, batch, **law)
                sync = whole - step_seconds(1, 1, batch, **law)
                found.append(StepTimeRow(hosts, ranks, float(batch), whole, sync, placement))
    return found


def table(name="made-up", **law):
    return StepTable(name, rows(**law))


def write(folder: pathlib.Path, name: str, *, epochs=(), **law):
    """A model's folder as traces.read expects it; epochs: {global batch: [progress, …]}."""
    home = folder / name
    home.mkdir(parents=True)
    lines = [
        ("".join(map(str, row.placement)), int(row.batch), row.seconds, row.sync)
        for row in rows(**law)
    ]
    _csv(home / "placements.csv", "placement,local_bsz,step_time,sync_time", lines)
    for batch, progress in dict(epochs).items():
        header = "progress,iteration,metric,grad_sqr,grad_var"
        _csv(home / f"validation-{batch}.csv", header, [(p, p, 0, 1.0, 0.0) for p in progress])


def write_workload(folder: pathlib.Path, name: str, jobs):
    home = folder / "workloads"
    home.mkdir(exist_ok=True)
    _csv(home / f"{name}.csv", "name,time,application,num_replicas,batch_size", jobs)


def _csv(path: pathlib.Path, header: str, lines):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(lines)
