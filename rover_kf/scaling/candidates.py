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

from rover_kf.scaling.decision_input import Case
from rover_kf.scaling.throughput import ThroughputModel

QUANTILES = (-1.28, -0.52, 0.0, 0.52, 1.28)
"""Of the normal distribution: middles of five equally likely parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The size that is gone back to where a try disappoints."""

    size: int
    rate: float


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A size that might be gone to."""

    size: int
    rate: float
    """Samples per second, the model's word."""
    total: float
    """Expected cost J of going there, with the way there and perhaps back."""


def offers(case: Case, model: ThroughputModel) -> list[Offer]:
    """Sizes within a factor of two that are allowed and not banned, cheapest first."""
    present = case.seen.replicas
    near = (k for k in case.policy.allowed() if present <= 2 * k and k <= 2 * present)
    return _sorted(case, model, [k for k in near if k != present], Home(present, case.rate))


def between(case: Case, model: ThroughputModel, home: Home) -> list[Offer]:
    """Sizes between the present one, which disappointed, and the one to go back to."""
    low, high = sorted((home.size, case.seen.replicas))
    return _sorted(case, model, [k for k in case.policy.allowed() if low < k < high], home)


def _sorted(case: Case, model: ThroughputModel, sizes: Iterable[int], home: Home) -> list[Offer]:
    banned = case.state.banned(case.now)
    found = []
    for size in sizes:
        if size not in banned:
            rate, spread = model.rate(case.world(size)), model.spread(case.world(size))
            found.append(Offer(size, rate, _expected(case, size, (rate, spread), home)))
    return sorted(found, key=lambda offer: offer.total)


def _expected(case: Case, size: int, known: tuple[float, float], home: Home) -> float:
    """Replica-seconds and the price of waiting for the rest of the work."""
    rate, spread = known
    back = case.cost(home.size, home.rate) + case.change_cost(home.size)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(size, there), back + _trial(case, size, there, home))
    return total / len(QUANTILES) + case.change_cost(size)


def _trial(case: Case, size: int, rate: float, home: Home) -> float:
    """What is lost while windows show that the size is worse than home."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    extra = case.seen.masters + case.policy.value_of_time
    work_at_home = (home.size + extra) / home.rate
    return max(0.0, seconds * (size + extra) - seconds * rate * work_at_home)
