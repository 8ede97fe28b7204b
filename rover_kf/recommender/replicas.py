# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many Worker replicas to begin with, by the model that also scales the job later; pure."""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.api.samples import Throughput
from rover_kf.recommender.sizes import Sources
from rover_kf.scaling import throughput
from rover_kf.scaling.policy import WatchPolicy

LEAST_WEIGHT = 0.3
"""Throughput is taken from runs of the same command only: another script has another speed."""


def replicas(sources: Sources, policy: WatchPolicy) -> Quantity:
    """The size with the least cost J by what runs alike measured, at most twice the largest seen.

    Args:
        sources: what is known.
        policy: bounds, allowed sizes and the value of time.
    """
    facts = sources.facts
    stated = facts.requested["replicas"]
    windows = _windows(sources)
    model = throughput.fit(windows)
    sizes = policy.allowed()
    if model is None or not sizes:
        why = "the manifest asks for it; no run alike has shown its throughput"
        low, high = float(policy.min), float(policy.max)
        return Quantity("replicas", stated, low, high, "replicas", "manifest", 0.0, why)
    ranks = facts.signature.processes_per_node
    largest = max(window.world_size for window in windows)

    def nodes(size: int) -> int:
        return size + facts.masters

    reach = [size for size in sizes if nodes(size) * ranks <= 2 * largest] or [sizes[0]]
    rates = {size: model.predict(nodes(size) * ranks) for size in reach}
    costs = {
        size: (nodes(size) + policy.value_of_time) / rates[size].samples_per_second
        for size in reach
    }
    best = min(reach, key=lambda size: costs[size])
    fair = [size for size in reach if costs[size] <= 1.1 * costs[best]]
    found = rates[best]
    why = (
        f"{best} replicas are the cheapest for the time they take: {found.samples_per_second:.1f} "
        f"({found.lower:.1f}-{found.upper:.1f}) samples/s "
        f"{'measured' if found.measured else 'predicted'}"
    )
    weight = sum(run.weight for run in sources.runs if run.record.windows)
    low, high = float(min(fair)), float(max(fair))
    return Quantity("replicas", float(best), low, high, "replicas", "history", weight, why)


def _windows(sources: Sources) -> list[Throughput]:
    command = sources.facts.signature.command
    rows = [
        window
        for run in sources.runs
        if run.weight >= LEAST_WEIGHT and run.record.signature.command == command
        for window in run.record.windows
    ]
    return sorted(rows, key=lambda window: window.ended_at)
