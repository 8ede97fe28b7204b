# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Unix time that does not jump while a process runs."""

from __future__ import annotations

import time


class MonotonicWallClock:
    """A first reading, and the seconds since; somebody may set the wall clock meanwhile.

    Args:
        started_at: the time now in Unix seconds; None: as the wall clock has it.
    """

    def __init__(self, started_at: float | None = None) -> None:
        self._begun, self._from = (
            time.time() if started_at is None else started_at,
            time.monotonic(),
        )

    def now(self) -> float:
        """Unix seconds."""
        return self._begun + time.monotonic() - self._from
