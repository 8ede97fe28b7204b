# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are gone keep their last addresses."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver

from rover_kf.sidecar.last_known import LastKnown


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
        resolver = LastKnown(asked)
        before = await resolver.resolve("localhost", 7411)
        assert before[0]["host"] == "127.0.0.1"
        asked.gone = True
        assert await resolver.resolve("localhost", 7411) == before
        with pytest.raises(OSError, match="no address for elsewhere"):
            await resolver.resolve("elsewhere", 7411)
        await resolver.close()

    asyncio.run(scenario())
