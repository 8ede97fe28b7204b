# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs alike, weighted, and the statistics over them; pure.

    weight = exp(-d^2 / 2 h^2) * 2^(-age / 14 days)

with d = 0 for the same command and image, 0.5 for the same command, 1 for the same job name, and
2 for anything else of the namespace. Two weeks halve a run's say: code and data move on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from rover_kf.api.records import JobSignature, RunRecord

BANDWIDTH = 0.7
HALF_LIFE_SECONDS = 14 * 86400.0
LEAST_WEIGHT = 0.05
"""Below this a run says nothing: another job of the namespace (d = 2) weighs 0.017."""


@dataclasses.dataclass(frozen=True, slots=True)
class Neighbour:
    """A run and its weight, in (0, 1]."""

    record: RunRecord
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A number of a run with the run's weight."""

    value: float
    weight: float


def near(
    signature: JobSignature, records: Iterable[RunRecord], now: float
) -> tuple[Neighbour, ...]:
    """Runs that say something about a job, heaviest first."""
    found = []
    for record in records:
        age = max(0.0, now - record.updated_at)
        distance = _distance(signature, record.signature)
        weight = math.exp(-(distance**2) / (2 * BANDWIDTH**2)) * freshness(age)
        if weight >= LEAST_WEIGHT:
            found.append(Neighbour(record, weight))
    return tuple(sorted(found, key=lambda item: -item.weight))


def freshness(age: float) -> float:
    """What is left of a run's weight after so many seconds."""
    return math.pow(0.5, age / HALF_LIFE_SECONDS)


def _distance(one: JobSignature, other: JobSignature) -> float:
    if one.kind != other.kind or one.accelerators != other.accelerators:
        return 2.0
    if one.command and one.command == other.command:
        return 0.0 if one.image == other.image else 0.5
    return 1.0 if one.name and one.name == other.name else 2.0


def samples(
    neighbours: Iterable[Neighbour], value: Callable[[RunRecord], float | None]
) -> tuple[Sample, ...]:
    """A number of each run that has it (positive)."""
    read = ((value(item.record), item.weight) for item in neighbours)
    return tuple(Sample(number, weight) for number, weight in read if number and number > 0)


def quantile(found: Sequence[Sample], share: float) -> float:
    """Weighted quantile: the least value with at least that share of the weight at or below it."""
    ordered = sorted(found, key=lambda sample: sample.value)
    total, below = sum(sample.weight for sample in ordered), 0.0
    for sample in ordered:
        below += sample.weight
        if below >= share * total - 1e-12:
            return sample.value
    return ordered[-1].value


def effective(found: Iterable[Sample]) -> float:
    """How many runs stand behind a statistic: their weights summed."""
    return sum(sample.weight for sample in found)


def spread(found: Sequence[Sample]) -> float:
    """Weighted median of the distances from the weighted median."""
    middle = quantile(found, 0.5)
    return quantile([Sample(abs(s.value - middle), s.weight) for s in found], 0.5)


def interval(found: Sequence[Sample], target: float) -> tuple[float, float]:
    """Weighted 10 % and 90 % quantiles, at least 25 % wide each way below five effective runs."""
    low, high = min(quantile(found, 0.1), target), max(quantile(found, 0.9), target)
    if effective(found) < 5:  # noqa: PLR2004 - five, as said
        low, high = min(low, 0.75 * target), max(high, 1.25 * target)
    return low, high
