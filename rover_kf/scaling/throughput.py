# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a job would be at another world size, learned from throughput windows.

Called by the decision and by the recommender, so that both believe the same. The law of a step is
in ``allreduce_model``; here is which windows it is fitted to, and how sure its word is.

What counts is the median of the newest windows of each world and batch. A window that saves took
much of is left out where there are others. Where a world that was seen before has another step time
now, code, data or hardware have changed, and what was seen before is forgotten.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from rover_kf.api.samples import Throughput
from rover_kf.scaling.allreduce_model import AllReduceModel, Median, fit_model

SEED_ERRORS = (
    (1.0, (0.02, 0.05, 0.08, 0.12, 0.20)),
    (2.0, (0.04, 0.08, 0.12, 0.18, 0.25)),
    (math.inf, (0.05, 0.11, 0.18, 0.28, 0.45)),
)
"""Errors in log space by K over the largest K seen: fifths and p90 on public traces."""
COVERAGE = 0.9
WIDTH_IN_SPREADS = 1.645
"""The same coverage of a normal distribution."""
MEASURED_WIDTH = 0.05
"""Of a median of windows: what one visit tells of the next."""
OWN_WEIGHT = 3
"""What an error of the job's own counts beside the seeds."""


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
    """A fitted law and the medians it came from."""

    step_model: AllReduceModel
    medians: tuple[Median, ...]
    """In the order in which they were first seen."""
    keeps_global_batch: bool
    """Whether the job splits one batch over the ranks (else every rank keeps its own size)."""

    def rate(self, world_size: int) -> float:
        """Samples (or steps, if the trainer tells no samples) a second at a size from 1 on."""
        if world_size < 1:
            raise ValueError(world_size)
        seen = self._measured(world_size)
        if seen is not None:
            return seen.global_batch / seen.seconds
        batch = self._batch(world_size)
        return batch / self.step_seconds(world_size, global_batch=batch)

    def spread(self, world_size: int) -> float:
        """Standard deviation of the rate's error in log space, beside the sizes that were seen.

        Sizes that are near each other are wrong together: it grows with the root of the distance,
        up to a factor of two.
        """
        nearest = min(abs(math.log2(world_size / median.world_size)) for median in self.medians)
        return self._width(world_size) / WIDTH_IN_SPREADS * min(math.sqrt(nearest), 1.0)

    def predict(self, world_size: int) -> Prediction:
        """The same with its interval: nine in ten predictions alike came true inside."""
        rate = self.rate(world_size)
        measured = self._measured(world_size) is not None
        width = self._width(world_size)
        lower, upper = rate * math.exp(-width), rate * math.exp(width)
        return Prediction(world_size, rate, lower, upper, measured)

    def step_seconds(
        self, world_size: int, *, global_batch: float, nodes: int | None = None
    ) -> float:
        """Seconds of a step by the law alone; the batch is in samples over all ranks.

        By default as many ranks are in a pod as in the newest window.
        """
        newest = max(self.medians, key=lambda median: median.ended_at)
        if nodes is None:
            nodes = math.ceil(world_size * newest.nodes / newest.world_size)
        return self.step_model.seconds(nodes, world_size, global_batch / world_size)

    def _measured(self, world_size: int) -> Median | None:
        """Newest median of that world; None if there is none with the batch of today."""
        here = [median for median in self.medians if median.world_size == world_size]
        if not here:
            return None
        found = max(here, key=lambda median: median.ended_at)
        same = abs(math.log(found.global_batch / self._batch(world_size))) <= SAME_BATCH
        return found if same else None

    def _batch(self, world_size: int) -> float:
        newest = max(self.medians, key=lambda median: median.ended_at)
        if self.keeps_global_batch:
            return newest.global_batch
        return newest.global_batch / newest.world_size * world_size

    def _width(self, world_size: int) -> float:
        if self._measured(world_size) is not None:
            return MEASURED_WIDTH
        return self._half_width(world_size / max(median.world_size for median in self.medians))

    def _half_width(self, factor: float) -> float:
        """Split conformal: a quantile of errors at like factors, the job's own counted most."""
        limit, seeds = next((top, errors) for top, errors in SEED_ERRORS if factor <= top)
        own = [error for top, error in self._own_errors() if top == limit]
        errors = sorted([*seeds, *(own * OWN_WEIGHT)])
        place = math.ceil(COVERAGE * (len(errors) + 1)) - 1
        return errors[min(place, len(errors) - 1)]

    def _own_errors(self) -> list[tuple[float, float]]:
        """What the law, fitted to earlier worlds, would have said of each later one."""
        found = []
        for i in range(1, len(self.medians)):
            before, then = self.medians[:i], self.medians[i]
            law = fit_model(before)
            said = law.seconds(then.nodes, then.world_size, then.batch)
            error = abs(math.log(said / then.seconds))
            factor = then.world_size / max(median.world_size for median in before)
            found.append((next(top for top, _ in SEED_ERRORS if factor <= top), error))
        return found


def fit(windows: Iterable[Throughput]) -> ThroughputModel | None:
    """Fit a model to the windows that hold a step; None while there is none."""
    used = [w for w in windows if w.step_seconds > 0 and w.world_size > 0]
    found = compute_medians(since_change(used))
    if not found:
        return None
    law = fit_model(found)
    return ThroughputModel(law, found, _keeps_global_batch(found))


def _keeps_global_batch(medians: Sequence[Median]) -> bool:
    """Whichever varies less over the sizes seen: the whole batch, or a rank's."""
    whole = [math.log(median.global_batch) for median in medians]
    each = [math.log(median.global_batch / median.world_size) for median in medians]
    return max(whole) - min(whole) <= max(each) - min(each)


WINDOWS_PER_WORLD = 5
"""Newest windows of each world and batch that count: older ones may be of other data."""

CHANGED = 0.3
"""Log ratio of two step times of one world that noise does not explain."""
CHANGED_WINDOWS = 2
"""In a row have to show it: one may be a straggler."""

SAVING = 0.2
"""Share of a window in saves from which on it says little of steps."""

SAME_BATCH = 0.05
"""Log ratio up to which two global batches are the same: an epoch's last one is smaller."""


def median_throughput(windows: Sequence[Throughput]) -> float:
    """Median throughput of the newest windows; they must be of one world size, at least one."""
    newest = _undisturbed(windows)[-WINDOWS_PER_WORLD:]
    return statistics.median(_batch_of(w) / w.step_seconds for w in newest)


def since_change(windows: Sequence[Throughput]) -> Sequence[Throughput]:
    """What was seen since the newest visit to a world whose step time is another than before."""
    since = 0
    for places in _by_world(windows):
        quiet = [i for i in places if _is_quiet(windows[i])]
        start = level_start([windows[i].step_seconds for i in quiet])
        since = max(since, quiet[start] if start else 0)
    return windows[since:]


def level_start(seconds: Sequence[float]) -> int:
    """Return where a world's newest step times begin that only noise has changed since."""
    ends = range(len(seconds), 0, -1)
    return next((end - CHANGED_WINDOWS for end in ends if _jumped(seconds[:end])), 0)


def _jumped(seconds: Sequence[float]) -> bool:
    """Whether the newest step times are all off, one way, from those before."""
    newest, before = seconds[-CHANGED_WINDOWS:], seconds[:-CHANGED_WINDOWS][-WINDOWS_PER_WORLD:]
    if len(newest) < CHANGED_WINDOWS or len(before) < CHANGED_WINDOWS:
        return False
    usual = statistics.median(before)
    off = [math.log(one / usual) for one in newest]
    return min(off) > CHANGED or max(off) < -CHANGED


def compute_medians(windows: Sequence[Throughput]) -> tuple[Median, ...]:
    """Return those of each world and batch, in the order in which they were first seen."""
    found = []
    for places in _by_world(windows):
        rows = _undisturbed([windows[i] for i in places])[-WINDOWS_PER_WORLD:]
        batch = statistics.median(map(_batch_of, rows))
        seconds = statistics.median(row.step_seconds for row in rows)
        last, first = windows[places[-1]].ended_at, windows[places[0]].ended_at
        found.append(Median(rows[0].nodes, rows[0].world_size, batch, seconds, last, first))
    return tuple(sorted(found, key=lambda median: median.first_at))


def _by_world(windows: Sequence[Throughput]) -> list[list[int]]:
    """Indices of the windows of each world and batch."""
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for i, window in enumerate(windows):
        alike = groups.setdefault((window.nodes, window.world_size), [])
        for places in alike:
            if abs(math.log(_batch_of(window) / _batch_of(windows[places[0]]))) <= SAME_BATCH:
                places.append(i)
                break
        else:
            alike.append([i])
    return [places for alike in groups.values() for places in alike]


def _undisturbed(windows: Sequence[Throughput]) -> Sequence[Throughput]:
    """Without windows that saves took much of; all, if there are only such."""
    return [*filter(_is_quiet, windows)] or windows


def _is_quiet(window: Throughput) -> bool:
    return window.save_seconds <= SAVING * (window.ended_at - window.started_at)


def _batch_of(window: Throughput) -> float:
    # A trainer that does not tell its samples is reckoned in steps, with its global batch fixed.
    return window.global_batch or 1.0
