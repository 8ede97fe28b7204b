# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for a connection to a pod's former address tries the new one as soon as it is
told."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

FORMER, NEW = "127.0.0.2", "127.0.0.3"
PATIENCE_SECONDS = 60
"""For a connection, ours and the kernel's: longer than a machine stands still."""


@pytest.fixture
def port() -> Iterator[int]:
    """One at which FORMER takes no more connections: as of a pod that is gone, nobody answers."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server((FORMER, 0), backlog=0))
        address = full.getsockname()
        waiting = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in waiting:
            one.settimeout(0)
            one.connect_ex(address)
        eventually(lambda: _opening(address[1]) > 0, what="a connection that is not answered")
        yield address[1]


def _opening(port: int) -> int:
    """Connections to the port that are still being made (SYN_SENT), as the kernel lists them."""
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(one[2].endswith(f":{port:04X}") and one[3] == "02" for one in fields)


@contextlib.asynccontextmanager
async def of_a_pod(folder: pathlib.Path, port: int) -> AsyncIterator[HttpPeerClient]:
    """Peers of a second pod, whose coordinator was at FORMER and is at NEW now."""

    async def acknowledge(_: web.Request) -> web.Response:
        return web.json_response({"done": True})

    application = web.Application()
    application.router.add_post(names.PATH_EVENTS, acknowledge)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, NEW, port).start()
    (folder / "token").write_text("a token")
    changes = {"port": port, "pod": "demo-worker-1", "replica_index": 1, "address": "127.0.0.1"}
    changes["coordinator_host"] = "demo-worker-0.invalid"
    peers = HttpPeerClient(checkpoint_pod.settings_of(folder, **changes))
    await peers.start()
    peers.set_coordinator_address(FORMER)
    yield peers
    await peers.stop()
    await runner.cleanup()


def test_a_former_address_is_not_awaited(tmp_path, port, monkeypatch):
    """A request that waits for a connection there ends when the new address is told, long before
    its time; the next one goes to the new address. The same address told again ends none."""
    monkeypatch.setattr("rover_kf.sidecar.http.peer_client.CONNECT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("rover_kf.sidecar.http.connections.SILENCE_SECONDS", PATIENCE_SECONDS)

    async def scenario() -> float:
        async with of_a_pod(tmp_path, port) as peers:
            before = _opening(port)
            request = asyncio.create_task(peers.forward(names.PATH_EVENTS, b"{}"))
            opening = lambda: _opening(port) > before  # noqa: E731 - one condition
            await asyncio.to_thread(eventually, opening, what="the request's connection")
            peers.set_coordinator_address(FORMER)
            assert _opening(port) > before
            begun = time.monotonic()
            peers.set_coordinator_address(NEW)
            with pytest.raises(errors.ClusterUnavailable):
                await request
            took = time.monotonic() - begun
            assert (await peers.forward(names.PATH_EVENTS, b"{}"))[0] == 200
            return took

    assert asyncio.run(scenario()) < PATIENCE_SECONDS / 2


def test_connections_that_are_made_stay(tmp_path, port):
    """A request that was taken is answered, wherever the pod is said to be by then."""

    async def scenario() -> int:
        async with of_a_pod(tmp_path, port) as peers:
            peers.set_coordinator_address(NEW)
            await peers.forward(names.PATH_EVENTS, b"{}")
            request = asyncio.create_task(peers.forward(names.PATH_EVENTS, b"{}"))
            await asyncio.sleep(0)
            peers.set_coordinator_address("127.0.0.4")
            return (await request)[0]

    assert asyncio.run(scenario()) == 200
