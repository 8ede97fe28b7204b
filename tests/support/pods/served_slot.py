# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's slots on a port of this process, as its sidecar serves them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import time

import aiohttp
from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.http.app import Authenticator, make_application
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.states import identities

PATH = f"{names.PATH_SLOTS}/0/{identities.state(7).key}"
CONTENT = random.Random(7).randbytes((2 << 20) + 3)


class Served:
    """A pod's slots on a port of this process, step 7 in them.

    Args:
        slots: the pod's, empty.
        content: of the step.
        reader_seconds: after which a reader that takes nothing loses it.
    """

    def __init__(
        self, slots: PodSlots, content: bytes = CONTENT, *, reader_seconds: float = 60.0
    ) -> None:
        self.arena = slots.arena(0)
        slots.allocate(ArenaRequest(0, len(content)))
        self.seal = self.save(content)
        self.port, self._server = 0, SlotServer(slots, reader_seconds=reader_seconds)

    def save(self, content: bytes, slot: int = 0) -> Seal:
        """Step 7 as it is from now on."""
        with self.arena.fill(only=slot) as filling:
            os.pwrite(filling.descriptor, content, 0)
            return filling.seal(
                state=identities.state(7),
                length=len(content),
                rank=0,
                world_size=1,
                replicated=True,
            )

    @contextlib.asynccontextmanager
    async def running(
        self, *, tls: ssl.SSLContext | None = None, gate: Authenticator | None = None
    ):
        """Serve as a sidecar does."""
        runner = web.AppRunner(
            make_application(self._server.routes(), gate), handler_cancellation=True
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def get(self, *, range_: str = "", tls: ssl.SSLContext | None = None):
        """Status, headers, body."""
        url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}{PATH}"
        headers = {"Range": range_} if range_ else {}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=tls or False) as response,
        ):
            return response.status, response.headers, await response.read()

    async def ask(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection whose reader takes what the test takes, and little more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 10)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"Connection: close" in head
        return reader, writer

    def is_pinned(self) -> bool:
        """Whether the slot could not be written now."""
        try:
            self.arena.fill(only=self.seal.slot, timeout_seconds=0).close()
        except errors.CheckpointError:
            return True
        return False

    async def freed(self, within: float) -> float:
        """Seconds until the slot could be written."""
        begun = time.monotonic()
        async with asyncio.timeout(within):
            while self.is_pinned():  # noqa: ASYNC110 - a lock of the kernel's
                await asyncio.sleep(0.01)
        return time.monotonic() - begun
