# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Waits for more memory after a kill for it, where the job's policy lets its limit be raised.

To start again at once would only be killed again, until the budget of restarts is spent: the
controller hears of the kill at its next look, and the kubelet takes a moment to give what it asks.
"""

from __future__ import annotations

import time

from rover_kf.launcher import memory_kills
from rover_kf.launcher.errands import Errands

PATIENCE_SECONDS = 9.0
"""After that training goes on with what there is: no controller may be there, or no room. The
others take a pod that says nothing for longer than that for lost (elastic.limits: stop_lease)."""
LOOK_SECONDS = 0.1
"""The kernel tells nobody of a raised limit."""


def wait(errands: Errands, limit: int, most: int) -> float:
    """Return when the container may use more than it could when its process was killed.

    Args:
        errands: go on meanwhile.
        limit: bytes that it could use then; 0: not known, nothing is waited for.
        most: bytes that the limit may be raised to; 0: it is not raised.

    Returns:
        Seconds that were waited.

    Raises:
        Stop: the pod ends.
    """
    began = time.monotonic()
    if not limit or limit >= most:
        return 0.0
    while time.monotonic() - began < PATIENCE_SECONDS and memory_kills.limit() <= limit:
        errands.pause(LOOK_SECONDS)
    return time.monotonic() - began
