# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition of the machine; the only place of this package that polls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    *,
    seconds: float,
    every: float = 0.1,
    hopeless: Callable[[], bool] = lambda: False,
) -> T:
    """Return the condition's first truthy value, or its last one when the time is over.

    Args:
        condition: asked at least once.
        seconds: to go on asking.
        every: seconds between two questions.
        hopeless: tells that waiting longer is of no use.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or hopeless() or time.monotonic() > deadline:
            return value
        time.sleep(every)
