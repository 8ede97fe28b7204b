# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who looks after the job sees its end: a look just before would miss the last steps."""

from __future__ import annotations

import asyncio
import contextlib

RECENT_SECONDS = 2.0
"""Looks that come less often are not waited for."""
LONGEST_SECONDS = 2.0
"""The wait for one more; an embedded job is looked at twice a second."""


class LastLook:
    """Looks at the status by who wants the Events too: the reconciler, not a progress bar."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self.after = 0
        """Sequence of the newest Event that a look knew of."""
        self._asked = asyncio.Event()

    def asked(self, now: float, after: int) -> None:
        """The status was asked for.

        Args:
            now: by a steady clock.
            after: the sequence above which Events were asked for.
        """
        self._at, self.after = now, after
        self._asked.set()

    async def wait(self, now: float) -> None:
        """Until it was asked for once more; not at all if nobody has asked lately."""
        if now - self._at > RECENT_SECONDS:
            return
        self._asked.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._asked.wait(), LONGEST_SECONDS)
