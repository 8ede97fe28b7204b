# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are gone keep their last addresses."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver

from rover_kf.sidecar.http.connections import AddressCache


class Forgetful(AbstractResolver):
    """The system's resolver, until the names are gone."""

    def __init__(self) -> None:
        self.real = ThreadedResolver()
        self.gone = False

    async def resolve(self, host, port=0, family=0):
        if self.gone:
            raise OSError(f"no address for {host}")
        return await self.real.resolve(host, port, family)

    async def close(self) -> None:
        await self.real.close()


def test_a_name_that_is_gone_keeps_its_address():
    """What was found once is still answered; what never was is an error."""

    async def scenario() -> None:
        asked = Forgetful()
        resolver = AddressCache(asked)
        before = await resolver.resolve("localhost", 7411)
        assert before[0]["host"] == "127.0.0.1"
        asked.gone = True
        assert await resolver.resolve("localhost", 7411) == before
        with pytest.raises(OSError, match="no address for elsewhere"):
            await resolver.resolve("elsewhere", 7411)
        await resolver.close()

    asyncio.run(scenario())


def test_a_held_resolver_asks_nothing_until_it_is_freed():
    """The first question is put when somebody needs the answer, or the time is over."""

    async def scenario() -> None:
        for seconds, free in ((60.0, True), (0.05, False)):
            resolver = AddressCache(ThreadedResolver())
            resolver.pause(seconds)
            waiting = asyncio.create_task(resolver.resolve("localhost", 7411))
            await asyncio.sleep(0)
            assert not waiting.done()
            if free:
                resolver.resume()
            assert (await asyncio.wait_for(waiting, 30))[0]["host"] == "127.0.0.1"
            await resolver.close()

    asyncio.run(scenario())


def test_what_a_pod_says_of_itself_comes_first():
    """Before the name server's answer, and alone where that knows nothing."""

    async def scenario() -> None:
        asked = Forgetful()
        resolver = AddressCache(asked)
        resolver.pause(60.0)
        resolver.prefer("localhost", "127.0.0.9")
        resolver.prefer("demo-worker-0.invalid", "127.0.0.8")
        found = await resolver.resolve("localhost", 7411)
        assert [one["host"] for one in found] == ["127.0.0.9", "127.0.0.1"]
        resolver.prefer("localhost", "127.0.0.1")
        assert [one["host"] for one in await resolver.resolve("localhost", 7411)] == ["127.0.0.1"]
        asked.gone = True
        (only,) = await resolver.resolve("demo-worker-0.invalid", 7411)
        assert (only["host"], only["port"]) == ("127.0.0.8", 7411)
        await resolver.close()

    asyncio.run(scenario())
