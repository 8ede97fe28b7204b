# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long a step takes at another world size, learned from throughput windows.

Called by the decision and by the recommender, so that both believe the same. All-reduce training:

    T(K) = c0 + c1 * b + r0 * 2 (K - 1) / K + r2 * (K - 1)        all coefficients >= 0

with K ranks and b samples a rank. Fitted by non-negative least squares, each row weighted by
1/T (relative errors count), with small ridge rows on all but c1: what one world size alone cannot
tell apart is then put down to compute, which is optimistic, and the verify step pays for optimism.
On measured traces this proposer decided better than models that predict better.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import optimize

from rover_kf.api.samples import Throughput

WINDOWS_PER_WORLD = 5
"""Newest windows of each world size that count: older ones may be of other data or hardware."""

RIDGE = (0.02, 0.0, 0.05, 2.0)
"""Weight of the ridge rows on (c0, c1, r0, r2); r2 is what makes a fit explode at large K."""

HALF_WIDTHS = ((1.0, 0.20), (2.0, 0.25), (math.inf, 0.45))
"""Half-width of the interval in log space, by K over the largest K seen (p90 on public traces)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """Throughput at a world size."""

    world_size: int
    samples_per_second: float
    lower: float
    upper: float
    measured: bool
    """Whether it is the median of windows at that very size and not the model's word."""


@dataclasses.dataclass(frozen=True, slots=True)
class ThroughputModel:
    """Fitted coefficients and the medians they came from."""

    coefficients: tuple[float, float, float, float]
    medians: tuple[tuple[int, float, float], ...]
    """(world size, seconds a step, global batch), ascending by world size."""
    keeps_global_batch: bool
    """Whether the job splits one batch over the ranks (else every rank keeps its own size)."""

    def predict(self, world_size: int) -> Prediction:
        """Throughput at the size, in samples (or steps, if the trainer tells no samples) a second.

        Raises:
            ValueError: world_size is below 1.
        """
        if world_size < 1:
            raise ValueError(world_size)
        seen = {world: (seconds, batch) for world, seconds, batch in self.medians}
        if world_size in seen:
            seconds, batch = seen[world_size]
            return _prediction(world_size, batch / seconds, HALF_WIDTHS[0][1], measured=True)
        batch = self._batch(world_size)
        seconds = self._step_seconds(world_size, batch)
        factor = world_size / max(seen)
        width = next(width for limit, width in HALF_WIDTHS if factor <= limit)
        return _prediction(world_size, batch / seconds, width, measured=False)

    def _batch(self, world_size: int) -> float:
        nearest = min(self.medians, key=lambda row: abs(math.log(row[0] / world_size)))
        return nearest[2] if self.keeps_global_batch else nearest[2] / nearest[0] * world_size

    def _step_seconds(self, world_size: int, batch: float) -> float:
        terms = zip(self.coefficients, _terms(world_size, batch), strict=True)
        return max(sum(c * x for c, x in terms), 1e-9)


def fit(windows: Iterable[Throughput]) -> ThroughputModel | None:
    """Fit a model; None while no window holds a step.

    Args:
        windows: in the order of time; those without a step are left out.
    """
    medians = _medians([w for w in windows if w.step_seconds > 0 and w.world_size > 0])
    if not medians:
        return None
    times = np.array([seconds for _, seconds, _ in medians])
    rows = np.array([_terms(world, batch) for world, _, batch in medians]) / times[:, None]
    ridge = math.sqrt(len(medians)) * np.diag(RIDGE) / float(np.median(times))
    # c1 multiplies samples while the others are seconds: its column is scaled, so that the
    # solver's tolerance means the same for all four.
    scale = np.array([1.0, float(np.median(times)) / float(np.median(rows[:, 1] * times)), 1, 1])
    design = np.vstack([rows, ridge]) * scale
    target = np.concatenate([np.ones(len(medians)), np.zeros(len(RIDGE))])
    solution, _ = optimize.nnls(design, target)
    c0, c1, r0, r2 = (float(value) for value in solution * scale)
    return ThroughputModel((c0, c1, r0, r2), medians, _keeps_global_batch(medians))


def measured(windows: Sequence[Throughput]) -> float:
    """Median throughput of the newest windows; they must be of one world size, at least one."""
    newest = windows[-WINDOWS_PER_WORLD:]
    return statistics.median(_batch_of(w) / w.step_seconds for w in newest)


def _terms(world: int, batch: float) -> tuple[float, float, float, float]:
    return 1.0, batch / world, 2.0 * (world - 1) / world, float(world - 1)


def _batch_of(window: Throughput) -> float:
    # A trainer that does not tell its samples is reckoned in steps, with its global batch fixed.
    return window.global_batch or 1.0


def _medians(windows: Sequence[Throughput]) -> tuple[tuple[int, float, float], ...]:
    by_world: dict[int, list[Throughput]] = {}
    for window in windows:
        by_world.setdefault(window.world_size, []).append(window)
    return tuple(
        (
            world,
            statistics.median(w.step_seconds for w in rows[-WINDOWS_PER_WORLD:]),
            statistics.median(_batch_of(w) for w in rows[-WINDOWS_PER_WORLD:]),
        )
        for world, rows in sorted(by_world.items())
    )


def _keeps_global_batch(medians: Sequence[tuple[int, float, float]]) -> bool:
    """Whichever varies less over the sizes seen: the whole batch, or a rank's."""
    whole = [math.log(batch) for _, _, batch in medians]
    each = [math.log(batch / world) for world, _, batch in medians]
    return max(whole) - min(whole) <= max(each) - min(each)


def _prediction(world: int, rate: float, width: float, *, measured: bool) -> Prediction:
    return Prediction(world, rate, rate * math.exp(-width), rate * math.exp(width), measured)
