# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are answered when there is something to tell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

_POLL_SECONDS = 1.0
"""How often it is looked without a change: a pace, too, may allow something new."""

T = TypeVar("T")


class LongPoll:
    """Those who wait for one thing, and who tells them.

    Without a lock: one would have to be taken again by whoever is cancelled while it waits.
    """

    def __init__(self) -> None:
        self.next_change = asyncio.Event()
        """Set at the next change; to be kept before a look that awaits, so that none is missed."""

    def notify(self) -> None:
        """There may be something to tell: everybody who waits looks."""
        self.next_change.set()
        self.next_change = asyncio.Event()

    async def wait(self, probe: Callable[[], T | None], seconds: float) -> T | None:
        """Wait up to so many seconds until ``probe`` returns something else than None.

        It is called at once, at each change, and now and then.

        Returns:
            What there is; None: nothing in time.
        """
        until = time.monotonic() + seconds
        while (found := probe()) is None and (rest := until - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.next_change.wait(), min(rest, _POLL_SECONDS))
        return found
