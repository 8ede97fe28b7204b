# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Measured seconds a step by placement and batch, interpolated between measurements.

How many replicas a node takes, which sizes there are and which batches fit is for the rows to say:
nothing here knows a model or a machine.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import interpolate
from scipy.spatial import QhullError

from rover_kf.errors import InputError

USUAL = 0.25
"""A batch counts as possible if it was measured so often, beside the most usual one."""


class NoTables(InputError):
    """There is no measured table where one was expected."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepTimeRow:
    """One measurement."""

    hosts: int
    ranks: int
    batch: float
    """Samples a rank and step."""
    seconds: float
    """A step takes."""
    sync: float = 0.0
    """Of the step, spent in the exchange of gradients."""
    placement: tuple[int, ...] = ()
    """Ranks on each node, if known."""


class StepTable:
    """What a model's step takes on one kind of hardware, by at least one measurement."""

    def __init__(self, name: str, rows: Iterable[StepTimeRow]) -> None:
        self.name, self.rows = name, tuple(rows)
        if not self.rows:
            raise NoTables(f"the table of {name} has no rows: give measured step times")
        self.per_host = max(max(row.placement, default=1) for row in self.rows)
        self.most_ranks = max(row.ranks for row in self.rows)
        self._most_hosts = max(row.hosts for row in self.rows)
        self._by_place: dict[tuple[int, ...], list[StepTimeRow]] = {}
        self._by_size: dict[tuple[int, int], list[StepTimeRow]] = {}
        for row in self.rows:
            if row.placement:
                self._by_place.setdefault(smallest_rotation(row.placement), []).append(row)
            else:
                self._by_size.setdefault((row.hosts, row.ranks), []).append(row)
        self._cache: dict[tuple[tuple[int, ...], float], tuple[float, float]] = {}

    @functools.cached_property
    def batches(self) -> tuple[float, float]:
        """Smallest and largest batch of a rank that most placements were measured with."""
        counts: dict[float, int] = {}
        for row in self.rows:
            counts[row.batch] = counts.get(row.batch, 0) + 1
        least = USUAL * max(counts.values())
        usual = [batch for batch, count in counts.items() if count >= least]
        return min(usual), max(usual)

    def packed(self, ranks: int) -> tuple[int, ...]:
        """The placement on as few nodes as hold the ranks."""
        full, rest = divmod(ranks, self.per_host)
        return (self.per_host,) * full + ((rest,) if rest else ())

    @functools.cached_property
    def sizes(self) -> dict[int, tuple[float, float]]:
        """Ranks that were measured on as few nodes as hold them → their least and largest batch.

        Up to a node any number, then whole nodes.
        """
        found = {}
        for ranks in range(1, self.most_ranks + 1):
            rows = self._rows(self.packed(ranks))
            if rows and (ranks <= self.per_host or ranks % self.per_host == 0):
                high = min(max(row.batch for row in rows), self.batches[1])
                found[ranks] = (min(row.batch for row in rows), high)
        return found

    def sizes_for(self, global_batch: float) -> tuple[int, ...]:
        """Of the sizes, those that were measured with their share of that batch."""
        pairs = self.sizes.items()
        return tuple(k for k, (low, high) in pairs if low <= global_batch / k <= high)

    def largest_batch(self, placement: Sequence[int]) -> float:
        """Largest batch of a rank that was measured there; the usual one if none was."""
        rows = self._rows(tuple(placement))
        return max((row.batch for row in rows), default=self.batches[1])

    def times(self, placement: Sequence[int], batch: float) -> tuple[float, float]:
        """Seconds of a step, and of it for the exchange, at the placement and samples a rank."""
        place = smallest_rotation(tuple(count for count in placement if count))
        found = self._cache.get((place, batch))
        if found is None:
            rows = self._rows(place)
            found = _along_batch(rows, batch) if rows else self._interpolate(place, batch)
            self._cache[place, batch] = found
        return found

    def step_seconds(self, ranks: int, global_batch: float) -> float:
        """Seconds of a step of a batch that is split over packed ranks."""
        return self.times(self.packed(ranks), global_batch / ranks)[0]

    def _rows(self, placement: tuple[int, ...]) -> list[StepTimeRow]:
        placement = smallest_rotation(placement)
        return self._by_place.get(placement) or self._by_size.get(
            (len(placement), sum(placement)), []
        )

    def _interpolate(self, placement: tuple[int, ...], batch: float) -> tuple[float, float]:
        low, high = self.batches
        at = [[min(len(placement), self._most_hosts), sum(placement), min(max(batch, low), high)]]
        body, nearest = self._bodies
        found = nearest(at)[0] if body is None else body(at)[0]
        if not np.all(np.isfinite(found)):
            found = nearest(at)[0]
        return float(found[0]), float(found[1])

    @functools.cached_property
    def _bodies(
        self,
    ) -> tuple[interpolate.LinearNDInterpolator | None, interpolate.NearestNDInterpolator]:
        places: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
        for row in self.rows:
            at = (float(row.hosts), float(row.ranks), row.batch)
            places.setdefault(at, []).append((row.seconds, row.sync))
        where: npt.NDArray[np.float64] = np.array(list(places))
        values = np.array([np.mean(pairs, axis=0) for pairs in places.values()])
        nearest = interpolate.NearestNDInterpolator(where, values, rescale=True)
        try:
            return interpolate.LinearNDInterpolator(where, values), nearest
        except QhullError:  # Too few rows, or all in one plane: there is no body to be inside of.
            return None, nearest


def smallest_rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    """A ring is the same wherever one begins to count."""
    turns = (placement[i:] + placement[:i] for i in range(len(placement)))
    return min(turns, default=placement)


def _along_batch(rows: Sequence[StepTimeRow], batch: float) -> tuple[float, float]:
    """Straight lines between measured batches; beyond the last one the last line goes on."""
    rows = sorted(rows, key=lambda row: row.batch)
    if len(rows) == 1 or batch <= rows[0].batch:
        return rows[0].seconds, rows[0].sync
    high = next((i for i, row in enumerate(rows) if row.batch >= batch), len(rows) - 1)
    one, two = rows[max(high - 1, 0)], rows[high]
    if math.isclose(one.batch, two.batch):
        return two.seconds, two.sync
    part = (batch - one.batch) / (two.batch - one.batch)
    return (
        one.seconds + part * (two.seconds - one.seconds),
        max(0.0, one.sync + part * (two.sync - one.sync)),
    )
