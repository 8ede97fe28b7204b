# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The law of a worker's step with parameter servers, fitted to medians of setups; pure.

With w workers of W cores each, p servers of S cores each, and m samples a step of one worker:

    T = t0 + t1 m/W + t2 w/(p S) + t3 w/p + t4 m/p

compute of the worker, updates that all workers' gradients wait for on the servers' cores, weights
that go over the servers' wires, and rows that are looked up there. Workers do not wait for each
other: the job makes w/T steps a second. All coefficients are >= 0 (NNLS, relative errors); ridge
rows keep what setups cannot tell apart small. One setup alone tells nothing of another one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.scaling import least_squares, throughput

RIDGE = (0.02, 0.02, 0.02, 0.05, 0.05)
"""Of the terms at their medians, in medians of a step: what repeats another term is dropped."""
MIN_SETUPS = 2
"""That differ by more than time."""
REACH = 2.0
"""Times what was seen of each number, beyond which nothing is said."""
WINDOWS_PER_SETUP = 5
"""Newest of each setup that count."""
COVERAGE = 0.9
MIN_WIDTH = 0.1
"""Of a prediction, in log space."""

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class PsRow:
    """A median: a setup, samples of a worker's step, seconds of it."""

    setup: ServerSetup
    batch: float
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class PsModel:
    """A fitted law and what it came from."""

    terms: tuple[float, ...]
    rows: tuple[PsRow, ...]
    """The newest last."""
    log_width: float
    """Of nine in ten predictions alike, in log space."""

    def steps_per_second(self, setup: ServerSetup) -> float:
        """Of the whole job: what was measured at that very setup, else the law's word."""
        alike = [row for row in self.rows if _numbers(row.setup) == _numbers(setup)]
        if alike:
            return setup.workers / alike[-1].seconds
        return setup.workers / self._seconds(setup)

    def interval(self, setup: ServerSetup) -> tuple[float, float]:
        """Nine in ten predictions alike came true inside."""
        rate = self.steps_per_second(setup)
        return rate * math.exp(-self.log_width), rate * math.exp(self.log_width)

    def reaches(self, setup: ServerSetup) -> bool:
        """Whether each number is within a factor of two of what was seen."""
        seen = np.array([_numbers(row.setup) for row in self.rows])
        numbers = np.array(_numbers(setup))
        low, high = seen.min(0) / REACH, seen.max(0) * REACH
        return bool(np.all(numbers >= low - 1e-9) and np.all(numbers <= high + 1e-9))

    def _seconds(self, setup: ServerSetup) -> float:
        row = _features(setup, self.rows[-1].batch)
        return max(sum(t * x for t, x in zip(self.terms, row, strict=True)), 1e-9)


def fit(rows: Sequence[PsRow]) -> PsModel | None:
    """Fit the law; None while too few setups were seen."""
    if len({_numbers(row.setup) for row in rows}) < MIN_SETUPS:
        return None
    errors = []
    for i, row in enumerate(rows):
        others = [*rows[:i], *rows[i + 1 :]]
        said = float(np.dot(_solve(others), _features(row.setup, row.batch)))
        errors.append(abs(math.log(max(said, 1e-9) / row.seconds)))
    place = min(math.ceil(COVERAGE * (len(errors) + 1)), len(errors)) - 1
    width = max(sorted(errors)[place], MIN_WIDTH)
    return PsModel(tuple(float(term) for term in _solve(rows)), tuple(rows), width)


def last_change_at(setups: Sequence[ServerSetup], windows: Iterable[Throughput]) -> float:
    """When a setup last became another than it had been: Unix seconds; 0 if none has.

    Code, data or the machines have changed then, and nothing from before tells of what comes. The
    rule is that of the ring's law (``throughput``).
    """
    return max((_change_time(some) for some in _by_setup(setups, windows).values()), default=0.0)


def median_rows(setups: Sequence[ServerSetup], windows: Iterable[Throughput]) -> tuple[PsRow, ...]:
    """Medians of a run's windows, one for each setup, in the order of their newest windows.

    What is older than the last change (``last_change_at``) counts for nothing.
    """
    seen = tuple(windows)
    since = last_change_at(setups, seen)
    found = _by_setup(setups, (window for window in seen if window.started_at >= since))
    order = sorted(found.items(), key=lambda item: item[1][-1].ended_at)
    return tuple(_row(setup, some[-WINDOWS_PER_SETUP:]) for setup, some in order)


def _by_setup(
    setups: Sequence[ServerSetup], windows: Iterable[Throughput]
) -> dict[ServerSetup, list[Throughput]]:
    """Windows in which one setup was there all through, by the newest setup of its numbers."""
    found: dict[tuple[float, ...], list[Throughput]] = {}
    known: dict[tuple[float, ...], ServerSetup] = {}
    for window in windows:
        setup = _during(setups, window)
        if setup is not None and window.steps > 0:
            key = _numbers(setup)
            found.setdefault(key, []).append(window)
            known[key] = setup
    return {known[key]: some for key, some in found.items()}


def _change_time(windows: Sequence[Throughput]) -> float:
    start = throughput.level_start([*map(_seconds, windows)])
    return windows[start].started_at if start else 0.0


def _seconds(window: Throughput) -> float:
    """Of a step of the whole job, without what saves took."""
    return max((window.ended_at - window.started_at - window.save_seconds) / window.steps, 1e-9)


def _row(setup: ServerSetup, windows: Sequence[Throughput]) -> PsRow:
    seconds = statistics.median(map(_seconds, windows))
    batch = statistics.median(w.global_batch or 1.0 for w in windows)
    return PsRow(setup, batch, max(setup.workers * seconds, 1e-9))


def _during(setups: Sequence[ServerSetup], window: Throughput) -> ServerSetup | None:
    """The setup that was there all through the window; None if it changed in it."""
    before = [setup for setup in setups if setup.since <= window.started_at]
    changed = any(window.started_at < setup.since < window.ended_at for setup in setups)
    return None if changed or not before else before[-1]


def _solve(rows: Sequence[PsRow]) -> Array:
    seconds = np.array([row.seconds for row in rows])
    terms = np.array([_features(row.setup, row.batch) for row in rows])
    # Each term as it is in the middle of what was seen: one ridge for numbers of any unit.
    scale = 1.0 / np.median(terms, axis=0)
    ridge = math.sqrt(len(rows)) * np.diag(RIDGE) / float(np.median(seconds))
    design = np.vstack([terms * scale / seconds[:, None], ridge])
    target = np.concatenate([np.ones(len(rows)), np.zeros(len(ridge))])
    solution: Array = least_squares.solve(design, target) * scale
    return solution


def _features(setup: ServerSetup, batch: float) -> tuple[float, ...]:
    workers, servers = float(setup.workers), float(setup.servers)
    cores = servers * setup.server_cores
    return 1.0, batch / setup.worker_cores, workers / cores, workers / servers, batch / servers


def _numbers(setup: ServerSetup) -> tuple[float, float, float, float]:
    return float(setup.workers), float(setup.servers), setup.worker_cores, setup.server_cores
