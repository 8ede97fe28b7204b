# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Windows → one median for each world and batch: what of the past counts, and what does not."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from rover_kf.api.samples import Throughput
from rover_kf.scaling.allreduce_model import StepRow

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


@dataclasses.dataclass(frozen=True, slots=True)
class Median:
    """What the newest windows of a world and batch say."""

    nodes: int
    world_size: int
    global_batch: float
    seconds: float
    ended_at: float
    first_at: float

    @property
    def row(self) -> StepRow:
        """As the law sees it."""
        each = self.global_batch / self.world_size
        return StepRow(self.nodes, self.world_size, each, self.seconds)


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
    """Where the newest step times of a world begin that nothing but noise has changed since.

    Args:
        seconds: of its windows, in the order of time.
    """
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
    """Of each world and batch, in the order in which they were first seen.

    Args:
        windows: that hold steps, in the order of time.
    """
    found = []
    for places in _by_world(windows):
        rows = _undisturbed([windows[i] for i in places])[-WINDOWS_PER_WORLD:]
        found.append(
            Median(
                rows[0].nodes,
                rows[0].world_size,
                statistics.median(_batch_of(row) for row in rows),
                statistics.median(row.step_seconds for row in rows),
                windows[places[-1]].ended_at,
                windows[places[0]].ended_at,
            )
        )
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
