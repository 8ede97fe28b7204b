# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What another size is expected to cost, if it is tried, judged, and left again where it is worse.

A size's throughput is known so far as the model's spread says. Of a few equally likely values each
is worth the least of two: staying there to the end, or coming back. So a wide spread makes a try
worth more where little is lost by it, and a dear restart makes it worth less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rover_kf.scaling.decision_input import DecisionInput
from rover_kf.scaling.throughput import ThroughputModel

QUANTILES = (-1.28, -0.52, 0.0, 0.52, 1.28)
"""Of the normal distribution: middles of five equally likely parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class FallbackSize:
    """The size that is gone back to where a try disappoints."""

    size: int
    rate: float


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A size that might be gone to."""

    size: int
    rate: float
    """Samples per second, the model's word."""
    expected_cost: float
    """Expected cost J of going there, with the way there and perhaps back."""


def candidates(case: DecisionInput, model: ThroughputModel) -> list[Candidate]:
    """Sizes within a factor of two that are allowed and not banned, cheapest first."""
    present = case.observation.replicas
    near = (k for k in case.policy.allowed() if present <= 2 * k and k <= 2 * present)
    return _by_expected_cost(
        case, model, [k for k in near if k != present], FallbackSize(present, case.rate)
    )


def candidates_between(
    case: DecisionInput, model: ThroughputModel, fallback: FallbackSize
) -> list[Candidate]:
    """Sizes between the present one, which disappointed, and the one to go back to."""
    low, high = sorted((fallback.size, case.observation.replicas))
    return _by_expected_cost(
        case, model, [k for k in case.policy.allowed() if low < k < high], fallback
    )


def _by_expected_cost(
    case: DecisionInput, model: ThroughputModel, sizes: Iterable[int], fallback: FallbackSize
) -> list[Candidate]:
    banned = case.state.banned(case.now)
    found = []
    for size in sizes:
        if size not in banned:
            rate, spread = model.rate(case.world_size(size)), model.spread(case.world_size(size))
            found.append(
                Candidate(size, rate, _expected_cost(case, size, (rate, spread), fallback))
            )
    return sorted(found, key=lambda offer: offer.expected_cost)


def _expected_cost(
    case: DecisionInput, size: int, estimate: tuple[float, float], fallback: FallbackSize
) -> float:
    """Replica-seconds and the price of waiting for the rest of the work."""
    rate, spread = estimate
    back = case.cost(fallback.size, fallback.rate) + case.change_cost(fallback.size)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(size, there), back + _trial_cost(case, size, there, fallback))
    return total / len(QUANTILES) + case.change_cost(size)


def _trial_cost(case: DecisionInput, size: int, rate: float, fallback: FallbackSize) -> float:
    """What is lost while windows show that the size is worse than home."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    extra = case.observation.masters + case.policy.value_of_time
    work_at_home = (fallback.size + extra) / fallback.rate
    return max(0.0, seconds * (size + extra) - seconds * rate * work_at_home)
