# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a measured system does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STILL_SECONDS = 5.0
"""A look that takes so long says that whoever looks stood still, not the job."""


class TooLong(Exception):
    """What was waited for did not happen; the message says what."""


class StoodStill(Exception):
    """This process, or the whole machine, was stopped meanwhile: what was seen says nothing."""


def wait(
    look: Callable[[], T | None],
    *,
    seconds: float,
    what: str,
    every: float = 0.2,
    still: float = STILL_SECONDS,
) -> T:
    """The first truthy value.

    Args:
        look: gives the value.
        seconds: that it has to come.
        what: is waited for; for messages.
        every: seconds from one look to the next.
        still: seconds of a look from which what was seen does not count.

    Raises:
        TooLong: there was none in time.
        StoodStill: whoever waits was stopped meanwhile.
    """
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        found = look()
        if not found:
            time.sleep(every)
        if (took := time.monotonic() - begun) > every + still:
            raise StoodStill(f"{what}: a look took {took:.1f} s")
        if found:
            return found
        if time.monotonic() > deadline:
            raise TooLong(f"{what}: not within {seconds:g} s")
