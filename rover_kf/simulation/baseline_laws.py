# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Laws of a step as other systems state them, for policies that ours is compared with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import optimize

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class StepMeasurement:
    """Ranks on hosts, samples a rank, seconds of a step and of it in computing."""

    hosts: int
    ranks: int
    batch: float
    seconds: float
    compute: float


@dataclasses.dataclass(frozen=True, slots=True)
class OptimusLaw:
    """Optimus' synchronous speed without parameter servers: T = t0 b + t1 + t2 K, by NNLS."""

    coefficients: tuple[float, float, float]

    @classmethod
    def fit(cls, rows: Sequence[StepMeasurement]) -> OptimusLaw:
        """Least relative squares; no ridge, so that one size alone is all computing."""
        seconds = np.array([row.seconds for row in rows])
        terms = np.array([(row.batch, 1.0, row.ranks - 1.0) for row in rows])
        scale = np.array([1.0 / terms[:, 0].mean(), 1.0, 1.0])
        if len({row.ranks for row in rows}) == 1:
            scale[1:] = 0.0
        found, _ = optimize.nnls(terms * scale / seconds[:, None], np.ones(len(rows)))
        t0, t1, t2 = (float(value) for value in found * scale)
        return cls((t0, t1, t2))

    def seconds(self, ranks: int, batch: float) -> float:
        """Of a step with so many samples a rank."""
        t0, t1, t2 = self.coefficients
        return max(t0 * batch + t1 + t2 * (ranks - 1), 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class PolluxLaw:
    """AdaptDL's seven parameters, fitted as its agent does.

    T_c = a_c + b_c b; T_n = a_r + b_r max(K-2, 0) on one node, a_n + b_n max(K-2, 0) on several;
    T^g = T_c^g + T_n^g.
    """

    parameters: tuple[float, ...]

    @classmethod
    def fit(cls, rows: Sequence[StepMeasurement]) -> PolluxLaw:
        """Least log error of computing and of steps, by L-BFGS-B from AdaptDL's start."""
        data = _Columns.from_rows(rows)
        start, low, high = _bounds(data)
        found = optimize.minimize(
            _objective, start, args=(data,), bounds=list(zip(low, high, strict=True))
        ).x
        if not np.any(data.hosts > 1):
            found[2] = max(found[2], found[4] * 1.1)
            found[3] = max(found[3], found[5] * 1.1)
        return cls(tuple(float(value) for value in found))

    def seconds(self, hosts: int, ranks: int, batch: float) -> float:
        """Of a step with so many samples a rank."""
        row = _Columns.from_rows([StepMeasurement(hosts, ranks, batch, 1.0, 1.0)])
        return math.exp(float(_log_step(np.array(self.parameters), row)[0]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    hosts: Array
    ranks: Array
    batch: Array
    seconds: Array
    compute: Array

    @classmethod
    def from_rows(cls, rows: Sequence[StepMeasurement]) -> _Columns:
        table = np.array([dataclasses.astuple(row) for row in rows], dtype=np.float64)
        return cls(*table.T)


def _bounds(data: _Columns) -> tuple[Array, Array, Array]:
    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    low = np.array([1e-8] * 6 + [1.0])
    high = np.array([np.inf] * 6 + [10.0])
    fixed: dict[int, float] = {}
    if len(np.unique(data.batch)) == 1:
        fixed[0] = float(np.mean(data.compute)) / 2
    if not np.any(data.hosts > 1):
        fixed |= {2: 1e-8, 3: 1e-8}
    if not np.any((data.hosts == 1) & (data.ranks > 1)):
        fixed |= {4: 1e-8, 5: 1e-8}
    if not np.any(data.ranks > 2):  # noqa: PLR2004 - the law's own two
        fixed |= {3: 1e-8, 5: 1e-8}
    for place, value in fixed.items():
        start[place] = low[place] = high[place] = value
    return start, low, high


def _objective(parameters: Array, data: _Columns) -> float:
    compute = np.log(parameters[0] + parameters[1] * data.batch)
    one = np.sqrt(np.mean((compute - np.log(data.compute)) ** 2))
    two = np.sqrt(np.mean((_log_step(parameters, data) - np.log(data.seconds)) ** 2))
    _, _, a_n, b_n, a_r, b_r, g = parameters
    return float(one + two + 1e-3 * (g - 1) ** 2 + 1e-2 * ((b_n / a_n) ** 2 + (b_r / a_r) ** 2))


def _log_step(parameters: Array, data: _Columns) -> Array:
    a_c, b_c, a_n, b_n, a_r, b_r, g = parameters
    more = np.maximum(data.ranks - 2, 1e-8)
    network = np.where(
        data.hosts > 1, a_n + b_n * more, np.where(data.ranks > 1, a_r + b_r * more, 1e-8)
    )
    compute = a_c + b_c * data.batch
    # In logarithms: powers of ten of small seconds would come to nothing.
    found: Array = np.logaddexp(g * np.log(compute), g * np.log(network)) / g
    return found
