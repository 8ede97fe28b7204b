# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The law of a step of all-reduce training, fitted to medians; no iterative optimiser, no start.

With K ranks on N nodes and b samples a rank:

    T_c = c0 + c1 b                                        compute
    T_n = r0 2(K-1)/K [N = 1] + r1 2(K-1)/K [N > 1] + r2 (K-1)    a ring goes at its slowest link
    T   = (T_c^g + T_n^g)^(1/g)                            g > 1: part of T_n hides behind T_c

All coefficients are >= 0. Where single ranks were seen with two batches or more, they tell T_c by
itself; then each g of a few is tried, T_n is what the others' steps leave, and the g that fits
best stays. Otherwise all terms are fitted at once with g = 1. Ridge rows keep what the rows cannot
tell apart small: what one size alone shows is put down to compute, which is optimistic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rover_kf.scaling import least_squares

OVERLAPS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
OVERLAP_PRICE = 2e-3
"""Of log error that an overlap above 1 has to save for each unit."""

NETWORK_RIDGE = (0.0, 0.1, 2.0)
"""Weight of the ridge rows on (r0, r1, r2), in medians of a step; r2 makes fits explode."""
JOINT_RIDGE = (0.05, 0.0, 0.05, 0.05, 0.1)
"""The same on (c0, c1, r0, r1, r2) where all are fitted at once."""
FIXED_SHARE = 0.15
"""Of a step that is taken not to shrink with the batch, until rows of other batches tell."""
MIN_NETWORK_SHARE = 0.02
"""Share of a step that the network takes at least: what is left after rounding is not 0."""

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Median:
    """What the newest windows of a world and batch say: ranks on nodes, seconds a step."""

    nodes: int
    world_size: int
    global_batch: float
    seconds: float
    ended_at: float
    first_at: float

    @property
    def batch(self) -> float:
        """Samples a rank."""
        return self.global_batch / self.world_size


@dataclasses.dataclass(frozen=True, slots=True)
class AllReduceModel:
    """Fitted coefficients."""

    compute: tuple[float, float]
    network: tuple[float, float, float]
    overlap: float

    def seconds(self, nodes: int, world_size: int, batch: float) -> float:
        """Of a step with so many samples a rank."""
        compute = self.compute[0] + self.compute[1] * batch
        terms = _network_terms(nodes, world_size)
        network = sum(c * x for c, x in zip(self.network, terms, strict=True))
        if self.overlap == 1.0:
            return max(compute + network, 1e-9)
        power = compute**self.overlap + network**self.overlap
        return float(max(power ** (1 / self.overlap), 1e-9))


def fit_model(rows: Sequence[Median]) -> AllReduceModel:
    """Fit the law to at least one row."""
    alone = [row for row in rows if row.world_size == 1]
    if len(rows) > len(alone) and len({row.batch for row in alone}) > 1:
        return _profiled(rows, alone)
    return _joint(rows)


def _profiled(rows: Sequence[Median], alone: Sequence[Median]) -> AllReduceModel:
    """Compute by the single ranks, then the network for each overlap."""
    batches, seconds = _columns(alone)
    design = np.stack([np.ones_like(batches), batches], 1) / seconds[:, None]
    c0, c1 = least_squares.solve(design, np.ones(len(design)))
    others = [row for row in rows if row.world_size > 1]
    batches, seconds = _columns(others)
    compute = np.maximum(c0 + c1 * batches, 1e-9)
    terms = np.array([_network_terms(row.nodes, row.world_size) for row in others])
    ridge = math.sqrt(len(others)) * np.diag(NETWORK_RIDGE) / float(np.median(seconds))
    found: list[tuple[float, AllReduceModel]] = []
    for g in OVERLAPS:
        least = (MIN_NETWORK_SHARE * seconds) ** g
        network = np.maximum(seconds**g - compute**g, least) ** (1 / g)
        # An error of T_n counts by what it does to T.
        weight = (network / seconds) ** (g - 1) / seconds
        design = np.vstack([terms * weight[:, None], ridge])
        target = np.concatenate([network * weight, np.zeros(len(ridge))])
        solution = least_squares.solve(design, target)
        guess = (compute**g + (terms @ solution) ** g) ** (1 / g)
        error = math.sqrt(float(np.mean(np.log(guess / seconds) ** 2)))
        law = AllReduceModel((c0, c1), (solution[0], solution[1], solution[2]), g)
        found.append((error + OVERLAP_PRICE * (g - 1), law))
    return min(found, key=lambda pair: pair[0])[1]


def _joint(rows: Sequence[Median]) -> AllReduceModel:
    """All terms at once, without overlap."""
    batches, seconds = _columns(rows)
    terms = [(1.0, row.batch, *_network_terms(row.nodes, row.world_size)) for row in rows]
    median = float(np.median(seconds))
    # c1 multiplies samples while the others are seconds: its column is scaled, so that the
    # solver's tolerance means the same for all.
    scale = np.array([1.0, median / float(np.median(batches)), 1.0, 1.0, 1.0])
    ridge = math.sqrt(len(rows)) * np.diag(JOINT_RIDGE) / median
    prior = np.array([ridge[0, 0] * median * FIXED_SHARE, 0.0, 0.0, 0.0, 0.0])
    design = np.vstack([np.array(terms) / seconds[:, None], ridge]) * scale
    target = np.concatenate([np.ones(len(rows)), prior])
    c0, c1, r0, r1, r2 = least_squares.solve(design, target) * scale
    return AllReduceModel((float(c0), float(c1)), (float(r0), float(r1), float(r2)), 1.0)


def _columns(rows: Sequence[Median]) -> tuple[Array, Array]:
    batches = np.array([row.batch for row in rows], dtype=np.float64)
    return batches, np.array([row.seconds for row in rows], dtype=np.float64)


def _network_terms(nodes: int, world_size: int) -> tuple[float, float, float]:
    ring = 2.0 * (world_size - 1) / world_size
    return (ring, 0.0, world_size - 1.0) if nodes == 1 else (0.0, ring, world_size - 1.0)
