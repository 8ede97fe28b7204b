# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a step takes at other numbers of processes, before the job ever ran with more than one.

    T = (T1(b)^g + C^g)^(1/g)
    C = c0 R + [N > 1] (c1 + c2 R + c3 (K - 1) G + c4 (K / N - 1) R)

with b samples a process, K processes on N nodes, G bytes of gradients, R = 2 (K - 1) / K * G what a
ring sends. T1 is the job's own, of one process; the five terms are the network's, fitted on other
jobs of the same cluster by non-negative least squares over relative errors. g says how much of the
sending is hidden behind computing. Terms and g were chosen on public tables of six models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_kf.scaling import least_squares

OVERLAP = 1.1
"""g: 1 hides nothing."""
RIDGE = 1e-3
"""Weight of a row for each term: terms that no row tells apart stay small."""
LEAST_SHARE = 0.02
"""Of a step that sending takes at least: below it lies the noise of the measurement."""

Array = npt.NDArray[np.float64]
Terms = tuple[float, float, float, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class StepObservation:
    """A step of some job."""

    step_seconds: float
    alone_seconds: float
    """Of the same job's step with the same batch a process, in a world of one."""
    processes: int
    nodes: int
    gradient_bytes: float
    job: str = ""
    """Jobs count alike, however many observations each has."""


@dataclasses.dataclass(frozen=True, slots=True)
class CommunicationModel:
    """Seconds that being many costs, in five terms."""

    terms: Terms
    jobs: int
    """That the terms were learned from."""

    def sending_seconds(self, *, processes: int, nodes: int, gradient_bytes: float) -> float:
        """Return those of a step that sums the gradients of all processes, if none were hidden."""
        row = _row(processes, nodes, gradient_bytes)
        return sum(term * value for term, value in zip(self.terms, row, strict=True))

    def step_seconds(
        self, alone_seconds: float, *, processes: int, nodes: int, gradient_bytes: float
    ) -> float:
        """A step in a world of that size, from one alone, with the batch of each process kept."""
        sending = self.sending_seconds(
            processes=processes, nodes=nodes, gradient_bytes=gradient_bytes
        )
        return float((alone_seconds**OVERLAP + sending**OVERLAP) ** (1 / OVERLAP))


def from_bandwidth(bytes_per_second: float) -> CommunicationModel:
    """A network of which only its bandwidth is known."""
    return CommunicationModel((1.0 / bytes_per_second, 0.0, 0.0, 0.0, 0.0), 0)


def fit(observations: Iterable[StepObservation]) -> CommunicationModel | None:
    """Learn the terms; None if no observation is of more than one process."""
    rows = [seen for seen in observations if seen.processes > 1 and seen.step_seconds > 0]
    if not rows:
        return None
    counts: dict[str, int] = {}
    for seen in rows:
        counts[seen.job] = counts.get(seen.job, 0) + 1
    whole = np.array([seen.step_seconds for seen in rows])
    alone = np.array([min(seen.alone_seconds, seen.step_seconds) for seen in rows])
    least = (LEAST_SHARE * whole) ** OVERLAP
    sending = np.maximum(whole**OVERLAP - alone**OVERLAP, least) ** (1 / OVERLAP)
    # An error of sending weighs by what it does to the step, relative to the step.
    weights = (sending / whole) ** (OVERLAP - 1) / whole
    weights = weights / np.sqrt([counts[seen.job] for seen in rows])
    design = np.array([_row(seen.processes, seen.nodes, seen.gradient_bytes) for seen in rows])
    return CommunicationModel(_solve(design * weights[:, None], sending * weights), len(counts))


def _solve(design: Array, target: Array) -> Terms:
    # Terms differ by ten orders of magnitude: scaled, a tolerance means the same for all.
    scale: Any = np.linalg.norm(design, axis=0)
    scale[scale == 0] = 1.0
    ridge = RIDGE * np.eye(design.shape[1])
    stacked = np.vstack([design / scale, ridge])
    found = least_squares.solve(stacked, np.concatenate([target, np.zeros(design.shape[1])]))
    c0, c1, c2, c3, c4 = (float(value) for value in found / scale)
    return c0, c1, c2, c3, c4


def _row(processes: int, nodes: int, gradient_bytes: float) -> Terms:
    apart = float(nodes > 1)
    ring = 2.0 * (processes - 1) / processes * gradient_bytes
    shared = max(0.0, processes / nodes - 1) * ring
    return ring, apart, apart * ring, apart * (processes - 1) * gradient_bytes, apart * shared
