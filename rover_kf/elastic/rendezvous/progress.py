# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The newest step of the running round, and the step at which all ranks can still be stopped."""

from __future__ import annotations

import dataclasses
import math

MIN_STEP_SECONDS = 1e-3
"""Seconds; a step taken as shorter would make the drain step absurd."""
LONGEST_SILENCE = 2.0
"""Seconds; reports come each second, a longer silence is a pause, not steps unseen."""


@dataclasses.dataclass(slots=True)
class StepProgress:
    """Steps as they were reported."""

    any_reported: bool = False
    """Whether any step was ever reported: whether the script reports at all."""
    round: int = 0
    step: int | None = None
    """Newest step of that round; None before the first."""
    began: float = 0.0
    """When the round began."""
    step_ended_at: float = 0.0
    """When that step ended."""
    step_seconds: float = 1.0
    """Seconds a step."""

    def begin(self, number: int, now: float) -> None:
        """A new round: nothing of it was seen yet."""
        self.round, self.step, self.began = number, None, now

    def observe(self, number: int, step: int, *, seconds: float, ended_at: float) -> None:
        """A rank ended a step; news of another round are ignored."""
        self.any_reported = True
        if number == self.round and (self.step is None or step > self.step):
            self.step, self.step_ended_at, self.step_seconds = (
                step,
                ended_at,
                max(seconds, MIN_STEP_SECONDS),
            )

    def drain_step(self, now: float, notice: float) -> int | None:
        """A step that no rank has passed yet and all learn of in time; None if none is known."""
        if self.step is None:
            return None
        unseen = min(max(now - self.step_ended_at, 0.0), LONGEST_SILENCE) / self.step_seconds
        return self.step + 2 + math.floor(unseen) + math.ceil(notice / self.step_seconds)
