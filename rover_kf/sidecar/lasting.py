# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Work that a sidecar does for as long as it lives, whatever happens in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0


def lasting(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Begin work that has no end, in a task. Where it fails, it is logged and begins again.

    A task that ended with an error would be missed by nobody: no descriptor or no thread that could
    be had for a moment, and no step became durable any more.
    """
    return asyncio.create_task(_again_and_again(work))


async def _again_and_again(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - whatever it is, all else goes on, and so shall this
            _log.exception("%s failed, and begins again", getattr(work, "__qualname__", work))
        await asyncio.sleep(PAUSE_SECONDS)
