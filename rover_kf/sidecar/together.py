# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several coroutines at once, of which none goes on alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all; when one fails, or whoever waits is gone, the others are ended first.

    Args:
        works: to run.

    Returns:
        What each gave, in their order.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(call: Callable[[], T]) -> T:
    """Run a call in a thread; is over only when the thread is, whose memory may be given back then.

    Args:
        call: blocks.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def handed(call: Callable[[], T], let_go: Callable[[T], None]) -> T:
    """Run a call in a thread that takes hold of something.

    Args:
        call: blocks.
        let_go: of what it has given, if whoever waits is gone before.
    """
    taking = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:  # the thread goes on, and takes it

        def taken(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                let_go(done.result())

        taking.add_done_callback(taken)
        raise
