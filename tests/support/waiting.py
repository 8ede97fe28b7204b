# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What several tests need: waiting for a condition instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], *, within: float = 30.0, every: float = 0.05, what: str = ""
) -> T:
    """Return the condition's first truthy value.

    Raises:
        AssertionError: it stayed falsy for ``within`` seconds; shows the last value.
    """
    deadline = time.monotonic() + within
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or condition} still {value!r} after {within} s")
        pause.wait(every)
