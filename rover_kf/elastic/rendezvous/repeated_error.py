# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the same error has come again at the same place, so that no restart helps.

"Place" is the traceback and the training's step. A script that reports no steps is at no known
place, but for its first seconds.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.coordinator_state import LastError
from rover_kf.elastic.rendezvous.progress import StepProgress

BEGINNING = 60.0
"""Seconds of a round in which a script that reports no steps counts as at its beginning."""
SLACK = 2
"""Steps; the ranks of a world end a step one after the other."""


@dataclasses.dataclass(slots=True)
class RepeatedErrorDetector:
    """The last error that a repetition would prove to be permanent."""

    last: LastError | None = None

    def is_repeat(self, signature: str, progress: StepProgress, now: float) -> bool:
        """Note an error of the round that ``progress`` is of; True if it is the last one again.

        Args:
            signature: of the error; empty where a repetition proves nothing.
            progress: of the round that the error ended.
            now: the time, by the clock that the round's begin was taken with.
        """
        unknown = not progress.any_reported and now - progress.began > BEGINNING
        if not signature or unknown:
            return False
        before, self.last = self.last, LastError(signature, progress.step)
        if before is None or before.signature != signature:
            return False
        if before.step is None or progress.step is None:
            return before.step is progress.step
        return abs(before.step - progress.step) <= SLACK
