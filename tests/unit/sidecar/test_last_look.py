# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A coordinator whose job has ended stays until who looks after the job has seen it."""

from __future__ import annotations

import asyncio

from rover_kf.sidecar.last_look import RECENT_SECONDS, LastLook


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_it_waits_for_one_more_look():
    """The look before the end does not count."""

    async def course() -> None:
        look = LastLook()
        look.asked(10.0)
        waiting = asyncio.create_task(look.wait(10.5))
        await _turns()
        assert not waiting.done()
        look.asked(11.0)
        await asyncio.wait_for(waiting, 0.5)

    asyncio.run(course())


def test_nobody_is_waited_for_who_does_not_look():
    """Never, or not lately."""

    async def course() -> None:
        look = LastLook()
        await asyncio.wait_for(look.wait(10.0), 0.5)
        look.asked(10.0)
        await asyncio.wait_for(look.wait(10.0 + RECENT_SECONDS + 0.1), 0.5)

    asyncio.run(course())


def test_the_wait_has_an_end(monkeypatch):
    """Who looked may be gone."""
    monkeypatch.setattr("rover_kf.sidecar.last_look.LONGEST_SECONDS", 0.01)

    async def course() -> None:
        look = LastLook()
        look.asked(10.0)
        await asyncio.wait_for(look.wait(10.0), 5.0)

    asyncio.run(course())
