# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long a coordinator that is away is asked again."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.status import Ack
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from tests.support.pods import checkpoint_pod

PATIENCE_SECONDS = 0.5


@pytest.mark.parametrize(("waits", "answered"), [(True, True), (False, False)])
def test_patience_begins_when_a_long_answer_breaks_off(tmp_path, monkeypatch, waits, answered):
    """A coordinator that is lost while it reads a checkpoint for minutes has as long to come back
    as any; one that never answers is not asked for ever."""
    monkeypatch.setattr("rover_kf.sidecar.http.peer_client.RETRY_SECONDS", PATIENCE_SECONDS)
    asked: list[int] = []

    async def lost(request: web.Request) -> web.Response:
        asked.append(len(asked))
        if waits and len(asked) > 1:
            return web.json_response({"done": True})
        await asyncio.sleep(2 * PATIENCE_SECONDS if waits else 0)
        request.transport.close()
        return web.Response()

    async def scene() -> Ack:
        application = web.Application()
        application.router.add_post(names.PATH_COMMIT_WAIT, lost)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port := checkpoint_pod.free_port()).start()
        (tmp_path / "token").write_text("a token")
        peers = HttpPeerClient(checkpoint_pod.settings_of(tmp_path, port=port))
        await peers.start()
        try:
            return await peers.call_coordinator(names.PATH_COMMIT_WAIT, {}, Ack)
        finally:
            await peers.stop()
            await runner.cleanup()

    if answered:
        assert asyncio.run(scene()).done
    else:
        with pytest.raises(errors.ClusterUnavailable):
            asyncio.run(scene())
        assert len(asked) > 1
