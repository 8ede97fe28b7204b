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
class SimilarRun:
    """A run and its weight, in (0, 1]."""

    record: RunRecord
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class WeightedSample:
    """A number of a run with the run's weight."""

    value: float
    weight: float


def find_similar(
    signature: JobSignature, records: Iterable[RunRecord], now: float
) -> tuple[SimilarRun, ...]:
    """Runs that say something about a job, heaviest first."""
    found = []
    for record in records:
        age = max(0.0, now - record.updated_at)
        distance = _distance(signature, record.signature)
        weight = math.exp(-(distance**2) / (2 * BANDWIDTH**2)) * freshness(age)
        if weight >= LEAST_WEIGHT:
            found.append(SimilarRun(record, weight))
    return tuple(sorted(found, key=lambda item: -item.weight))


def freshness(age: float) -> float:
    """What is left of a run's weight after so many seconds."""
    return math.pow(0.5, age / HALF_LIFE_SECONDS)


def _distance(left: JobSignature, right: JobSignature) -> float:
    if left.kind != right.kind or left.accelerators != right.accelerators:
        return 2.0
    if left.command and left.command == right.command:
        return 0.0 if left.image == right.image else 0.5
    return 1.0 if left.name and left.name == right.name else 2.0


def weighted_samples(
    neighbours: Iterable[SimilarRun], value: Callable[[RunRecord], float | None]
) -> tuple[WeightedSample, ...]:
    """A number of each run that has it (positive)."""
    read = ((value(item.record), item.weight) for item in neighbours)
    return tuple(WeightedSample(number, weight) for number, weight in read if number and number > 0)


def quantile(samples: Sequence[WeightedSample], share: float) -> float:
    """Weighted quantile: the least value with at least that share of the weight at or below it."""
    ordered = sorted(samples, key=lambda sample: sample.value)
    total, below = sum(sample.weight for sample in ordered), 0.0
    for sample in ordered:
        below += sample.weight
        if below >= share * total - 1e-12:
            return sample.value
    return ordered[-1].value


def effective_count(samples: Iterable[WeightedSample]) -> float:
    """How many runs stand behind a statistic: their weights summed."""
    return sum(sample.weight for sample in samples)


def spread(samples: Sequence[WeightedSample]) -> float:
    """Weighted median of the distances from the weighted median."""
    middle = quantile(samples, 0.5)
    return quantile([WeightedSample(abs(s.value - middle), s.weight) for s in samples], 0.5)


def interval(samples: Sequence[WeightedSample], target: float) -> tuple[float, float]:
    """Weighted 10 % and 90 % quantiles, at least 25 % wide each way below five effective runs."""
    low, high = min(quantile(samples, 0.1), target), max(quantile(samples, 0.9), target)
    if effective_count(samples) < 5:  # noqa: PLR2004 - five, as said
        low, high = min(low, 0.75 * target), max(high, 1.25 * target)
    return low, high
