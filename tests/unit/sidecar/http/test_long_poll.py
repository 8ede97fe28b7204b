# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Long polls: answered at once, at a change, when a time has come, or not at all."""

from __future__ import annotations

import asyncio
import time

from rover_kf.sidecar.http.long_poll import LongPoll

WITHIN_SECONDS = 30.0


def test_what_there_is_comes_at_once():
    """Even to one who does not wait."""
    assert asyncio.run(LongPoll().wait(lambda: "news", 0)) == "news"


def test_nothing_in_time():
    """Who waits is told so."""
    assert asyncio.run(LongPoll().wait(lambda: None, 0.01)) is None


def test_a_change_wakes_everybody():
    """Each who waits looks again."""
    found: list[str] = []

    async def run() -> list[str | None]:
        poll, looked = LongPoll(), asyncio.Semaphore(0)

        def look() -> str | None:
            looked.release()
            return found[0] if found else None

        waiting = [asyncio.create_task(poll.wait(look, WITHIN_SECONDS)) for _ in range(3)]
        for _ in waiting:
            await looked.acquire()
        found.append("news")
        poll.notify()
        return await asyncio.gather(*waiting)

    assert asyncio.run(run()) == ["news"] * 3


def test_time_alone_may_bring_news():
    """Nobody tells of what a pace allows from now on."""
    due = time.monotonic() + 0.1

    def look() -> str | None:
        return "news" if time.monotonic() >= due else None

    assert asyncio.run(LongPoll().wait(look, WITHIN_SECONDS)) == "news"


def test_whoever_is_cancelled_twice_is_gone():
    """A closed connection, then the end of the sidecar: nobody waits on, nothing else is said."""

    async def run() -> list[object]:
        poll, looked = LongPoll(), asyncio.Semaphore(0)
        waiting = [
            asyncio.create_task(poll.wait(looked.release, WITHIN_SECONDS)) for _ in range(50)
        ]
        for _ in waiting:
            await looked.acquire()
        poll.notify()
        for _ in range(2):
            for one in waiting:
                one.cancel()
            await asyncio.sleep(0)
        done, left = await asyncio.wait(waiting, timeout=WITHIN_SECONDS / 2)
        assert not left
        return [one.cancelled() for one in done]

    assert asyncio.run(run()) == [True] * 50
