# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A coordinator whose job has ended stays until who looks after the job has seen it."""

from __future__ import annotations

import asyncio

import pytest

from rover_kf.coordinator.shutdown import RECENT_SECONDS, FinalPoll

WITHIN_SECONDS = 60.0


@pytest.fixture
def patient(monkeypatch):
    """A wait does not end by itself while a test looks on."""
    monkeypatch.setattr("rover_kf.coordinator.shutdown.LONGEST_SECONDS", 3600.0)


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("patient")
def test_it_waits_for_one_more_look():
    """The look before the end does not count."""

    async def course() -> None:
        look = FinalPoll()
        look.record_poll(10.0, 0)
        waiting = asyncio.create_task(look.wait(10.5))
        await _turns()
        assert not waiting.done()
        look.record_poll(11.0, 0)
        await asyncio.wait_for(waiting, WITHIN_SECONDS)

    asyncio.run(course())


@pytest.mark.usefixtures("patient")
def test_nobody_is_waited_for_who_does_not_look():
    """Never, or not lately."""

    async def course() -> None:
        look = FinalPoll()
        await asyncio.wait_for(look.wait(10.0), WITHIN_SECONDS)
        look.record_poll(10.0, 0)
        await asyncio.wait_for(look.wait(10.0 + RECENT_SECONDS + 0.1), WITHIN_SECONDS)

    asyncio.run(course())


def test_the_wait_has_an_end(monkeypatch):
    """Who looked may be gone."""
    monkeypatch.setattr("rover_kf.coordinator.shutdown.LONGEST_SECONDS", 0.01)

    async def course() -> None:
        look = FinalPoll()
        look.record_poll(10.0, 0)
        await asyncio.wait_for(look.wait(10.0), WITHIN_SECONDS)

    asyncio.run(course())
