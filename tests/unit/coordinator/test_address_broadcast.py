# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator tells every other pod where it is, also those that are reached late."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pathlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from rover_kf.api import codec, names
from rover_kf.api.membership import CoordinatorAddress
from rover_kf.api.status import Ack
from rover_kf.coordinator.address_broadcast import AddressBroadcaster, other_pods
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("pod", "masters", "most", "expected"),
    [
        ("demo-worker-0", 0, 3, ["demo-worker-1", "demo-worker-2"]),
        ("demo-worker-0", 0, 1, []),
        ("demo-master-0", 1, 3, ["demo-worker-0", "demo-worker-1"]),
    ],
)
def test_the_others_are_all_pods_that_there_may_be(tmp_path, pod, masters, most, expected):
    """By the names that the Training Operator gives them, but for the first pod itself."""
    told = {"pod": pod, "masters": masters, "max_nodes": most}
    settings = checkpoint_pod.settings_of(tmp_path, **told, coordinator_host=pod)
    assert other_pods(settings) == expected
    embedded = checkpoint_pod.settings_of(tmp_path, **told, coordinator_host="127.0.0.2")
    assert other_pods(embedded) == []


Told = list[tuple[str, str, str]]
"""Which pod, the first one's address, and the path."""


@contextlib.asynccontextmanager
async def heralded(
    folder: pathlib.Path, told: Told, *, pods: int
) -> AsyncIterator[tuple[AddressBroadcaster, HttpPeerClient]]:
    """A first pod, and a server on 127.0.0.1 that is whatever other pod is looked for there."""

    async def hear(request: web.Request) -> web.Response:
        message = codec.loads(CoordinatorAddress, await request.read())
        told.append((request.host.partition(":")[0], message.address, request.path))
        return web.Response(body=codec.dumps(Ack()), content_type="application/json")

    port = checkpoint_pod.free_port()
    changes = {"port": port, "max_nodes": pods, "address": "127.0.0.7"}
    changes["coordinator_host"] = "demo-worker-0"
    settings = checkpoint_pod.settings_of(folder, **changes)
    (folder / "token").write_text("a token")
    application = web.Application()
    application.router.add_post(names.PATH_COORDINATOR, hear)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    peers = HttpPeerClient(settings)
    await peers.start()
    herald = AddressBroadcaster(settings, peers)
    yield herald, peers
    await asyncio.to_thread(functools.partial(eventually, herald._task.done, within=60))
    await herald.stop()
    await peers.stop()
    await runner.cleanup()


def test_a_pod_that_is_reached_late_is_told_too(tmp_path):
    """One that answers at once hears it once; one whose name comes up later hears it then."""
    told: Told = []

    async def scenario() -> None:
        async with heralded(tmp_path, told, pods=3) as (herald, peers):
            peers._resolver.prefer("demo-worker-1", "127.0.0.1")
            herald.begin()
            await asyncio.to_thread(eventually, lambda: told)
            peers._resolver.prefer("demo-worker-2", "127.0.0.1")

    asyncio.run(scenario())
    expected = [(f"demo-worker-{at}", "127.0.0.7", names.PATH_COORDINATOR) for at in (1, 2)]
    assert told == expected


def test_the_controller_says_where_pods_are(tmp_path):
    """A pod whose name leads to another place is told at the address that the controller knows,
    at once; of pods that are none of the job's, and of what is no address, nothing is believed."""
    told: Told = []

    async def scenario() -> None:
        async with heralded(tmp_path, told, pods=2) as (herald, peers):
            peers._resolver.prefer("demo-worker-1", "127.0.0.2")  # where nobody listens
            herald.begin()
            herald.locate({"demo-worker-1": "nowhere", "other-worker-1": "127.0.0.1"})
            assert not herald._news.is_set()
            herald.locate({"demo-worker-1": "127.0.0.1"})

    asyncio.run(scenario())
    assert [pod for pod, *_ in told] == ["demo-worker-1"]
