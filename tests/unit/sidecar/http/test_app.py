# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a sidecar's listeners end while requests are open, and what refusals are answered with."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.status import Ack
from rover_kf.sidecar.http.app import LONG_POLLS, error_response, make_application, reply

GRACE = 30.0


@pytest.mark.parametrize("path", sorted(LONG_POLLS))
def test_a_long_poll_does_not_hold_up_the_end(path):
    """It waits for news that will not come: its connection is closed, though others had time."""
    assert asyncio.run(_end_of(path)) == "closed"


def test_whoever_fetches_has_time():
    """An answer that is under way is given to its end."""
    assert asyncio.run(_end_of(f"{names.PATH_SLOTS}/0/0-1-1-1")) == "answered"


async def _end_of(path: str) -> str:
    """What becomes of a request that is answered once the listener's end has begun."""
    asked, ending = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        asked.set()
        await ending.wait()
        return reply(Ack())

    async def news(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    route = web.post(path, news if path in LONG_POLLS else answer)
    made = make_application([route], None)

    async def end_began(_: web.Application) -> None:
        ending.set()

    made.on_shutdown.append(end_began)
    runner = web.AppRunner(made, handler_cancellation=True, shutdown_timeout=GRACE)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        host, port = runner.addresses[0][:2]
        request = asyncio.create_task(session.post(f"http://{host}:{port}{path}", data=b""))
        await asyncio.wait_for(asked.wait(), GRACE)
        end = asyncio.create_task(runner.cleanup())
        await asyncio.wait_for(end, GRACE / 2)  # sooner than a request's own time
        with contextlib.suppress(aiohttp.ClientError):
            async with await request as found:
                return "answered" if found.status == web.HTTPOk.status_code else "refused"
    return "closed"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.CheckpointError("round -3 is over"), 409),
        (errors.CorruptSnapshot("half of it"), 409),
        (errors.StorageError("full"), 507),
        (errors.ProtocolError("no JSON"), 400),
        (errors.RoverError("anything else"), 500),
    ],
)
def test_a_refusal_is_no_mistake_of_the_sidecar(error, status):
    """Each error has a status of its own; 500 is for what nobody has thought of."""
    assert error_response(error).status == status


def test_whoever_goes_in_the_middle_of_a_request_is_no_mistake(caplog):
    """A launcher that is told to end withdraws what it has just begun to send."""

    async def scenario() -> None:
        gone = asyncio.Event()

        async def answer(_: web.Request) -> web.Response:
            raise AssertionError("nothing is done for half a message")

        @web.middleware
        async def seen(request: web.Request, handler) -> web.StreamResponse:
            try:
                return await handler(request)
            finally:
                gone.set()

        made = make_application([web.post(names.PATH_WATCH, answer)], None)
        made.middlewares.insert(0, seen)
        runner = web.AppRunner(made)  # what it has begun it ends, as if cancelled too late
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        head = f"POST {names.PATH_WATCH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        writer.write(head.encode() + b"half")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), GRACE)
        await runner.cleanup()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records if "mistake" in record.message] == []
