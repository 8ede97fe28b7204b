# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How several jobs share one capacity: who gets how many replicas now; pure.

What a replica is worth to a job is the share of its left work that it does in a second, times the
job's weight. The sum over jobs is weighted completions a second: a replica brings a short job
nearer to its end than a long one. First each job gets its fewest replicas, so that jobs shrink and
none waits while there is room for all. Then the rest goes, one step at a time, where a step is
worth most for each replica. A job whose size changes loses a restart out of the time that the size
is likely to last, so that small gains move nobody.

What was preempted, has ended or is pending is no claim: its replicas are free at once.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

HORIZON_SECONDS = 600.0
"""How long a size is likely to last in a cluster where jobs come and go."""
AGEING_SECONDS = 3600.0
"""A job that has waited so long without a replica counts twice, and so on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A job that may train."""

    name: str
    rates: Mapping[int, float]
    """Allowed replicas, ascending, not empty → samples a second, measured or predicted."""
    work: float
    """Samples left."""
    present: int = 0
    """Replicas that it has; 0: it waits."""
    weight: float = 1.0
    """By its priority: what is worth twice gets the next replica at half the gain."""
    restart_seconds: float = 60.0
    """What a change of its size costs."""
    waited: float = 0.0
    """Seconds without a replica."""

    @property
    def min_replicas(self) -> int:
        """The least size that it can train with."""
        return next(iter(self.rates))

    def value(self, replicas: int) -> float:
        """Weighted share of the work that is done in a second at the size."""
        if not replicas:
            return 0.0
        rate = self.rates[replicas]
        if replicas != self.present:
            lasts = max(min(HORIZON_SECONDS, self.work / rate), self.restart_seconds)
            rate *= 1.0 - 0.9 * self.restart_seconds / lasts
        return self.weight * (1.0 + self.waited / AGEING_SECONDS) * rate / max(self.work, 1e-9)


def allocate(claims: Sequence[Claim], capacity: int) -> dict[str, int]:
    """Replicas of each job.

    Args:
        claims: jobs that may train, each name once.
        capacity: replicas that there is room for.

    Returns:
        An allowed size, or 0, for each name; together at most the capacity.
    """
    sizes, free = _grant_minimum(claims, capacity)
    steps = [step for i, claim in enumerate(claims) if (step := _best_step(claim, i, sizes, free))]
    heapq.heapify(steps)
    while steps:
        _, i, size = heapq.heappop(steps)
        claim = claims[i]
        if size - sizes[claim.name] <= free:
            free -= size - sizes[claim.name]
            sizes[claim.name] = size
        if step := _best_step(claim, i, sizes, free):
            heapq.heappush(steps, step)
    return sizes


def _grant_minimum(claims: Sequence[Claim], capacity: int) -> tuple[dict[str, int], int]:
    """Each job's fewest replicas, while there is room: those first that gain most by them."""
    sizes, free = {claim.name: 0 for claim in claims}, capacity
    order = sorted(claims, key=lambda claim: -claim.value(claim.min_replicas) / claim.min_replicas)
    for claim in order:
        if claim.min_replicas <= free:
            sizes[claim.name] = claim.min_replicas
            free -= claim.min_replicas
    return sizes, free


def _best_step(
    claim: Claim, index: int, sizes: Mapping[str, int], free: int
) -> tuple[float, int, int] | None:
    """The step up that is worth most for each replica, of those that fit; None if none gains."""
    present = sizes[claim.name]
    here = claim.value(present)
    best = max(
        (
            ((claim.value(size) - here) / (size - present), -size)
            for size in claim.rates
            if present < size <= present + free and (present or size == claim.min_replicas)
        ),
        default=(0.0, 0),
    )
    gain, size = best
    return (-gain, index, -size) if gain > 0 else None
