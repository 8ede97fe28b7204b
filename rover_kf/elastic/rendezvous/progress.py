# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The newest step of the running round, and the step at which all ranks can still be stopped."""

from __future__ import annotations

import dataclasses
import math

LEAST_PACE = 1e-3
"""Seconds; a step taken as shorter would make the drain step absurd."""
LONGEST_SILENCE = 2.0
"""Seconds; reports come each second, a longer silence is a pause, not steps unseen."""


@dataclasses.dataclass(slots=True)
class Progress:
    """Steps as they were reported."""

    ever: bool = False
    """Whether any step was ever reported: whether the script reports at all."""
    round: int = 0
    step: int | None = None
    """Newest step of that round; None before the first."""
    began: float = 0.0
    """When the round began."""
    at: float = 0.0
    """When that step ended."""
    pace: float = 1.0
    """Seconds a step."""

    def begin(self, number: int, now: float) -> None:
        """A new round: nothing of it was seen yet."""
        self.round, self.step, self.began = number, None, now

    def observe(self, number: int, step: int, *, seconds: float, at: float) -> None:
        """A rank ended a step; news of another round are ignored."""
        self.ever = True
        if number == self.round and (self.step is None or step > self.step):
            self.step, self.at, self.pace = step, at, max(seconds, LEAST_PACE)

    def drain_step(self, now: float, notice: float) -> int | None:
        """A step that no rank has passed yet and all learn of in time; None if none is known."""
        if self.step is None:
            return None
        unseen = min(max(now - self.at, 0.0), LONGEST_SILENCE) / self.pace
        return self.step + 2 + math.floor(unseen) + math.ceil(notice / self.pace)
