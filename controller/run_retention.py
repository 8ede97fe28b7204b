# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that ended long ago are forgotten, once a day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rover_kf import errors
from rover_kf.history.history_protocol import HistoryStore

DAY_SECONDS = 86400.0
FIRST_SECONDS = 300.0
"""After the start: a controller that restarts often must not only ever wait for the day's end."""

_log = logging.getLogger(__name__)


async def prune_history(
    history: HistoryStore,
    days: float,
    *,
    clock: Callable[[], float],
    first: float = FIRST_SECONDS,
    every: float = DAY_SECONDS,
) -> None:
    """Forget what is older, until cancelled.

    Args:
        history: of the controller.
        days: that a run which ended is kept; 0: for ever.
        clock: Unix seconds.
        first: seconds until it is first done.
        every: seconds between two times.
    """
    pause = first
    while True:
        await asyncio.sleep(pause)
        pause = every
        if not days:
            continue
        try:
            oldest = clock() - days * DAY_SECONDS
            gone = await asyncio.to_thread(history.retain, newer_than=oldest)
        except errors.HistoryUnavailable as cause:
            _log.warning("old runs are not forgotten now: %s", cause)
            continue
        _log.info("%d runs that ended more than %g days ago were forgotten", gone, days)
