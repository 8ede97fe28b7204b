# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Several coroutines at once, of which none goes on alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

_log = logging.getLogger(__name__)


PAUSE_SECONDS = 1.0


def run_forever(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Begin work that has no end, in a task. Where it fails, it is logged and begins again.

    A task that ended with an error would be missed by nobody: no descriptor or no thread that could
    be had for a moment, and no step became durable any more.
    """
    return asyncio.create_task(_retry_loop(work))


async def _retry_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - whatever it is, all else goes on, and so shall this
            _log.exception("%s failed, and begins again", getattr(work, "__qualname__", work))
        await asyncio.sleep(PAUSE_SECONDS)


# Where sidecar and trainer share a control group (embedded, one machine) a checksum would take a
# core from the step beside it; in pods the groups' shares decide, and this changes nothing.
_NICE = 10


def low_priority_executor() -> concurrent.futures.Executor:
    """For asyncio.to_thread."""
    return concurrent.futures.ThreadPoolExecutor(
        thread_name_prefix="rover-background", initializer=_lower_priority
    )


def _lower_priority() -> None:
    # Of this thread alone: on Linux every thread has a priority of its own.
    own = threading.get_native_id()
    # A process that was started with nice may be lower already, and no way leads up again.
    os.setpriority(os.PRIO_PROCESS, own, max(_NICE, os.getpriority(os.PRIO_PROCESS, own)))


T = TypeVar("T")


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
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


async def run_shielded(call: Callable[[], T]) -> T:
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


async def acquire_in_thread(call: Callable[[], T], release: Callable[[T], None]) -> T:
    """Run a call in a thread that takes hold of something.

    Args:
        call: blocks.
        release: of what it has given, if whoever waits is gone before.
    """
    taking = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:  # the thread goes on, and takes it

        def release_result(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                release(done.result())

        taking.add_done_callback(release_result)
        raise
