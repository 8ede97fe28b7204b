# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a world that are slow by their own work.

All ranks take the same time a step, since fast ones wait. So each rank's own time is compared,
until it only waits. A rank is slow in a window of fifty steps if its median is above 1.5 times the
others' median. It is a straggler after three slow windows of four: one alone may be a busy
neighbour.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping

from rover_kf.api.samples import StepReport

WINDOW_STEPS = 50
WINDOWS, SLOW_WINDOWS = 4, 3
RATIO = 1.5
MAX_OPEN_STEPS = 4096
"""Of one rank, while another tells nothing; older ones are given up."""


@dataclasses.dataclass(frozen=True, slots=True)
class StragglerRank:
    """A rank that the others wait for."""

    rank: int
    seconds: float
    """Its own time a step, median of the last window."""
    others_seconds: float


def slow_ranks(rank_seconds: Mapping[int, float]) -> tuple[StragglerRank, ...]:
    """Return the ranks that were slow in one window, by each rank's median."""
    found = []
    for rank, seconds in rank_seconds.items():
        rest = [own for other, own in rank_seconds.items() if other != rank]
        others = statistics.median(rest) if rest else seconds
        if seconds > RATIO * others:
            found.append(StragglerRank(rank, seconds, others))
    return tuple(found)


class StragglerDetector:
    """A detector over the windows of one round."""

    def __init__(self, number: int, world_size: int) -> None:
        self._number, self._world_size = number, world_size
        self._open: dict[int, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=MAX_OPEN_STEPS)
        )
        self._slow: collections.deque[frozenset[int]] = collections.deque(maxlen=WINDOWS)
        self._reported: set[int] = set()
        self._last: dict[int, StragglerRank] = {}
        self.current: tuple[StragglerRank, ...] = ()
        """For whom the rule holds, as of the last window."""

    def on_report(self, report: StepReport) -> tuple[StragglerRank, ...]:
        """Take a report; returns the stragglers that it shows for the first time."""
        if report.round != self._number:
            return ()
        self._open[report.rank].extend(
            sample.rank_local_seconds for sample in report.samples if sample.rank_local_seconds > 0
        )
        found: list[StragglerRank] = []
        while len(self._open) == self._world_size and all(
            len(times) >= WINDOW_STEPS for times in self._open.values()
        ):
            found += self._close_window()
        return tuple(found)

    def _close_window(self) -> tuple[StragglerRank, ...]:
        medians = {
            rank: statistics.median(times.popleft() for _ in range(WINDOW_STEPS))
            for rank, times in self._open.items()
        }
        now = slow_ranks(medians)
        self._slow.append(frozenset(one.rank for one in now))
        counts = collections.Counter(rank for ranks in self._slow for rank in ranks)
        self._last.update((one.rank, one) for one in now)
        self.current = tuple(
            self._last[rank] for rank in sorted(counts) if counts[rank] >= SLOW_WINDOWS
        )
        new = tuple(one for one in self.current if one.rank not in self._reported)
        self._reported.update(one.rank for one in new)
        return new
