# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a world stands still for longer than it may; pure.

Only silence of all ranks counts: ranks that train together stop together. What a process says it is
at can only lengthen the time that it is given, never shorten it; it is forgotten with its round.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection

from rover_kf.api.faults import hang_reports
from rover_kf.api.policy import HangPolicy

LATER_PAUSES = frozenset({hang_reports.EVALUATION, hang_reports.CHECKPOINT})
PAUSES = LATER_PAUSES | {hang_reports.START, hang_reports.WAITING}
"""What may take much longer than a step."""
PATIENCE = 2.0
"""Times the longest pause that ended well: the next one may be longer."""
RECENT_STEPS = 512
PERCENTILE = 0.99


@dataclasses.dataclass(frozen=True, slots=True)
class RankProgress:
    """What one rank of the round last said."""

    step: int | None
    """Its newest step in this round."""
    phase: str
    """What it is at."""
    changed_at: float
    """When either changed."""


class StepTimes:
    """How long steps take in this job, over all its rounds."""

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT_STEPS)
        self._longest = 0.0
        self._longest_pause = 0.0

    def add(self, seconds: float, *, pause: bool) -> None:
        """A step has ended that took so long; ``pause``: with something in it that may."""
        if pause:
            self._longest_pause = max(self._longest_pause, seconds)
            return
        self._recent.append(seconds)
        self._longest = max(self._longest, seconds)

    def limit(self, limits: HangPolicy, *, pausing: bool) -> float:
        """Seconds that may pass without a step."""
        usual = PATIENCE * self._longest
        if pausing:
            return max(limits.pause_min_seconds, usual, PATIENCE * self._longest_pause)
        ordered = sorted(self._recent)
        slow = ordered[math.ceil(PERCENTILE * len(ordered)) - 1] if ordered else 0.0
        return max(limits.min_seconds, limits.factor * slow, usual)


@dataclasses.dataclass(frozen=True, slots=True)
class Stall:
    """No rank has made a step for longer than it may take."""

    seconds: float
    limit: float


def detect_stall(
    ranks: Collection[RankProgress],
    *,
    began: float,
    step_times: StepTimes,
    limits: HangPolicy,
    now: float,
) -> Stall | None:
    """Return a stall of a round.

    All times are of one clock.

    Returns:
        None while all is well, or where nothing can be known: no rank tells of steps, one has
        ended already and the others may do what a script does after its last step, or nobody has
        anything to train on, as a stream brings nothing new.
    """
    phases = {one.phase for one in ranks if one.phase}
    if limits.action == "off" or not phases or phases & {hang_reports.ENDED, hang_reports.WAITING}:
        return None
    # Ranks make their first step together: with the first that tells of one it is behind all.
    starting = all(one.step is None for one in ranks)
    limit = step_times.limit(limits, pausing=starting or bool(phases & LATER_PAUSES))
    seconds = now - max([began, *(one.changed_at for one in ranks)])
    return Stall(seconds, limit) if seconds >= limit else None
