# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How memory grows: a bounded series of what the worst pod takes, and its slope.

The slope is Theil and Sen's: the median over all pairs, so that single looks may be wrong. Of the
whole series and of its newer half the smaller one counts, so that growth that has come to an end is
none; and by the share of pairs that rise, what goes up and down again is told from what grows.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from rover_kf.api.faults.limit_raises import MemoryTrend

MAX_SAMPLES = 60
"""Samples that are kept; beyond them every other one goes, and the distance doubles."""
MIN_SAMPLES = 20
"""Of which a trend may be told."""
EVERY_SECONDS = 2.0
NEWEST = 3
"""Whose median is what is taken now."""

Sample = tuple[float, float]
"""Unix seconds, bytes."""


class MemorySeries:
    """What a world's pods take, over the time of one world."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._every = EVERY_SECONDS

    def begin(self) -> None:
        """Another world: its processes are new."""
        self._samples.clear()
        self._every = EVERY_SECONDS

    def add(self, timestamp: float, memory: float) -> None:
        """Take a sample, unless the last one is newer than the distance that is kept."""
        if self._samples and timestamp - self._samples[-1][0] < self._every:
            return
        self._samples.append((timestamp, memory))
        if len(self._samples) > MAX_SAMPLES:
            self._samples, self._every = self._samples[::2], 2 * self._every

    def trend(self) -> MemoryTrend | None:
        """The trend; None while there is too little to tell it."""
        if len(self._samples) < MIN_SAMPLES:
            return None
        slopes = _slopes(self._samples)
        newer = _slopes(self._samples[len(self._samples) // 2 :])
        now = statistics.median(memory for _, memory in self._samples[-NEWEST:])
        return MemoryTrend(
            memory=now,
            per_second=min(statistics.median(slopes), statistics.median(newer)),
            rising=sum(slope > 0 for slope in slopes) / len(slopes),
            seconds=self._samples[-1][0] - self._samples[0][0],
        )


def _slopes(samples: Sequence[Sample]) -> list[float]:
    return [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for sooner, later in itertools.combinations(samples, 2)
    ]
