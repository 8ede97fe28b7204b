# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a pod's slots are given to other sidecars."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time

import aiohttp
import crc32c
import pytest

from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.webhook.certificates import issue
from tests.support.pods import checkpoint_pod
from tests.support.pods.served_slot import CONTENT, PATH, Served


@pytest.fixture
def slots(tmp_path):
    return PodSlots(checkpoint_pod.settings_of(tmp_path))


END = len(CONTENT)
RANGES = [
    ("", 0, END), ("bytes=0-", 0, END), ("bytes=1048577-", (1 << 20) + 1, END),
    ("bytes=5-9", 5, 10), (f"bytes={END - 1}-", END - 1, END), ("bytes=-4", END - 4, END),
    ("bytes=9-99999999", 9, END),
]  # fmt: skip


def test_a_range_is_served_with_the_checksum_of_the_whole(slots):
    """206 and where it lies for one range, 416 and the length for one that is empty or is many."""

    async def ask():
        async with Served(slots).running() as served:
            for range_, begin, end in RANGES:
                status, headers, body = await served.get(range_=range_)
                assert headers["X-Rover-Checksum"] == str(crc32c.crc32c(CONTENT))
                assert body == CONTENT[begin:end]
                assert status == (206 if range_ else 200)
                stated = f"bytes {begin}-{end - 1}/{END}" if range_ else None
                assert headers.get("Content-Range") == stated
            for range_ in (f"bytes={END}-", "bytes=9-5", "bytes=0-1,4-5", "lines=1-"):
                status, headers, _ = await served.get(range_=range_)
                assert (status, headers["Content-Range"]) == (416, f"bytes */{END}")
                assert headers["X-Rover-Checksum"] == str(crc32c.crc32c(CONTENT))

    asyncio.run(ask())


def test_an_answer_without_a_body_is_not_to_be_had(slots):
    """The bytes go past the HTTP server: where a client waits for none, none may be sent."""

    async def ask():
        async with (
            Served(slots).running() as served,
            aiohttp.ClientSession() as session,
            session.head(f"http://127.0.0.1:{served.port}{PATH}") as response,
        ):
            assert response.status == 405

    asyncio.run(ask())


def test_the_kernel_moves_the_bytes(slots, monkeypatch):
    """Every byte of a slot goes by sendfile(2), from where it is asked for."""
    sent = []
    sendfile = os.sendfile

    def noted(out, file, offset, count):
        done = sendfile(out, file, offset, count)
        sent.append((offset, done))
        return done

    monkeypatch.setattr(os, "sendfile", noted)

    async def ask():
        async with Served(slots).running() as served:
            assert (await served.get(range_="bytes=100-"))[2] == CONTENT[100:]

    asyncio.run(ask())
    assert sent[0][0] == 100
    assert sum(count for _, count in sent) == END - 100


def test_without_sendfile_the_bytes_are_the_same(slots, tmp_path):
    """A transport that cannot, such as TLS, is written to."""
    made = issue(["localhost"], time.time())
    chain, key = tmp_path / "chain", tmp_path / "key"
    chain.write_bytes(made.certificate)
    key.write_bytes(made.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, key)
    client = ssl.create_default_context(cadata=made.authority.decode())
    client.check_hostname = False

    async def ask():
        async with Served(slots).running(tls=server) as served:
            status, _, body = await served.get(range_="bytes=17-", tls=client)
            assert (status, body) == (206, CONTENT[17:])
            await served.freed(within=30)

    asyncio.run(ask())


def test_a_slot_stays_pinned_until_its_reader_has_all(slots):
    """What the server has sent lies in the slot still: it must not be overwritten there."""
    content = CONTENT[: 100 << 10]  # all of it fits between the two

    async def ask():
        async with Served(slots, content).running() as served:
            reader, writer = await served.ask()
            assert await reader.readexactly(len(content)) == content
            for _ in range(100):  # turns of the loop: the server has nothing left to do
                await asyncio.sleep(0)
            assert served.is_pinned()
            writer.close()
            await served.freed(within=30)

    asyncio.run(ask())


@pytest.mark.parametrize("at", [0, 1 << 20])
def test_a_reader_that_goes_away_frees_the_slot(slots, at):
    """Wherever in the answer; the next reader gets all."""

    async def ask():
        async with Served(slots, CONTENT * 8).running() as served:
            reader, writer = await served.ask()
            assert await reader.readexactly(at) == CONTENT[:at]
            writer.transport.abort()
            print(f"free after {await served.freed(within=30):.3f} s")
            served.save(CONTENT)
            assert (await served.get())[2] == CONTENT

    asyncio.run(ask())


@pytest.mark.parametrize("size", [100 << 10, 16 << 20])
def test_a_reader_that_stands_still_loses_the_slot(slots, size):
    """Whether all of it is on its way or most is not yet: a pin must not outlive its use."""

    async def ask():
        content = (CONTENT * 8)[:size]
        async with Served(slots, content, reader_seconds=1.0).running() as served:
            begun = time.monotonic()
            _, writer = await served.ask()
            await served.freed(within=60)
            assert time.monotonic() - begun > 0.5
            writer.transport.abort()

    asyncio.run(ask())


def test_a_reader_that_goes_while_its_slot_is_looked_up_leaves_no_pin(slots, monkeypatch):
    """The thread that pins cannot be stopped; what it brings is given back."""
    asked, go_on = threading.Event(), threading.Event()
    checksum = slots.checksum

    def slow(place, seal):
        asked.set()
        assert go_on.wait(60)
        return checksum(place, seal)

    monkeypatch.setattr(slots, "checksum", slow)

    async def ask():
        async with Served(slots).running() as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert await asyncio.to_thread(asked.wait, 60)
            writer.transport.abort()
            (handler,) = (
                task for task in asyncio.all_tasks() if "_handle_" in task.get_coro().__name__
            )
            await asyncio.wait([handler], timeout=60)
            assert handler.cancelled()
            go_on.set()
            await asyncio.get_running_loop().shutdown_default_executor()  # the thread has pinned
            await served.freed(within=30)

    asyncio.run(ask())
