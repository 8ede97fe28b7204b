# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many Worker replicas to begin with, by the model that also scales the job later; pure.

Where no run alike has shown its throughput, a dry run's step and the network's terms, learned from
other jobs, stand in for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from rover_kf.api.decisions import Quantity
from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.recommender import communication_model
from rover_kf.recommender.communication_model import CommunicationModel, StepObservation
from rover_kf.recommender.size_evidence import FAIR, SizeEvidence, quantify
from rover_kf.scaling import throughput
from rover_kf.scaling.policy import AutoscalingPolicy

STATE_OVER_GRADIENTS = 3.0
"""A snapshot with Adam's moments, over the gradients."""


def recommend_replicas(evidence: SizeEvidence, policy: AutoscalingPolicy) -> Quantity:
    """The size with the least cost J by runs alike, at most twice the largest seen."""
    windows = _windows(evidence)
    model = throughput.fit(windows)
    sizes = policy.allowed()
    if model is not None and sizes:
        largest = max(window.world_size for window in windows)
        reach = [size for size in sizes if _world(evidence, size) <= 2 * largest] or [sizes[0]]
        costs = _costs(evidence, policy, reach, lambda size: model.rate(_world(evidence, size)))
        found = model.predict(_world(evidence, _cheapest(costs)))
        verb = "measured" if found.measured else "predicted"
        told = (
            f"{found.samples_per_second:.1f} ({found.lower:.1f}-{found.upper:.1f}) samples/s {verb}"
        )
        weight = sum(run.weight for run in evidence.runs if run.record.windows)
        return _choose(costs, told, "history", weight)
    alone, learned = evidence.full_batch_trial(), fit_network(evidence)
    if alone is not None and alone.step_seconds and learned is not None and sizes:
        costs = _costs(evidence, policy, sizes, _cold_start_rate(evidence, learned))
        told = f"a dry run's step and what {learned.jobs} other jobs show of the network"
        return _choose(costs, told, "formula", float(learned.jobs))
    return _from_manifest(evidence, policy)


def fit_network(evidence: SizeEvidence) -> CommunicationModel | None:
    """The network's terms from jobs that ran alone and in company; None if there is none."""
    rows: list[StepObservation] = []
    for run in (*evidence.runs, *evidence.other_jobs):
        rows += _observations(run.record)
    return communication_model.fit(rows)


def _observations(record: RunRecord) -> list[StepObservation]:
    """Of a run that trained alone and in company; a step alone is in proportion to its batch."""
    seen = [window for window in record.windows if window.step_seconds > 0]
    single = [window for window in seen if window.world_size == 1]
    given = record.signature.parameters
    size = 4.0 * given if given else record.snapshot_bytes / STATE_OVER_GRADIENTS
    if not single or size <= 0:
        return []
    alone = statistics.median(window.step_seconds for window in single)
    batch = statistics.median(window.global_batch for window in single)
    found, command = [], record.signature.command
    for window in (window for window in seen if window.world_size > 1):
        ranks, step = window.world_size, window.step_seconds
        share = alone * (window.global_batch / ranks / batch if batch else 1.0)
        found.append(StepObservation(step, share, ranks, window.nodes, size, command))
    return found


def _cold_start_rate(evidence: SizeEvidence, learned: CommunicationModel) -> Callable[[int], float]:
    alone, state = evidence.full_batch_trial(), evidence.state
    if alone is None or state is None:
        raise AssertionError

    def rate(size: int) -> float:
        world = _world(evidence, size)
        nodes, sent = size + evidence.job.masters, state.gradient_bytes
        seconds = learned.step_seconds(
            alone.step_seconds, processes=world, nodes=nodes, gradient_bytes=sent
        )
        return world * max(1, alone.batch) / seconds

    return rate


def _choose(costs: Mapping[int, float], explanation: str, basis: str, weight: float) -> Quantity:
    best = _cheapest(costs)
    fair = [size for size, cost in costs.items() if cost <= FAIR * costs[best]]
    why = f"{best} replicas are the cheapest for the time they take: {explanation}"
    bounds = (float(min(fair)), float(max(fair)))
    return quantify("replicas", float(best), bounds, basis, why, samples=weight)


def _cheapest(costs: Mapping[int, float]) -> int:
    return min(costs, key=lambda size: costs[size])


def _costs(
    evidence: SizeEvidence,
    policy: AutoscalingPolicy,
    sizes: Sequence[int],
    rate: Callable[[int], float],
) -> dict[int, float]:
    masters = evidence.job.masters
    return {size: (size + masters + policy.value_of_time) / rate(size) for size in sizes}


def _world(evidence: SizeEvidence, size: int) -> int:
    return (size + evidence.job.masters) * evidence.job.signature.processes_per_node


def _from_manifest(evidence: SizeEvidence, policy: AutoscalingPolicy) -> Quantity:
    stated = evidence.job.requested["replicas"]
    target = min(max(stated, float(policy.min)), float(policy.max))
    nearest = min(policy.allowed(), key=lambda size: math.fabs(size - target), default=int(target))
    why = "the manifest asks for it; no run alike has shown its throughput"
    bounds = (min(float(policy.min), nearest), max(float(policy.max), nearest))
    return quantify("replicas", float(nearest), bounds, "manifest", why)


def _windows(evidence: SizeEvidence) -> list[Throughput]:
    rows = (window for run in evidence.runs_of_command() for window in run.windows)
    return sorted(rows, key=lambda window: window.ended_at)
