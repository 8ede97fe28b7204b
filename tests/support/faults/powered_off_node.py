# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar that waits for a coordinator whose node loses its power meanwhile.

Run in a network of its own (``unshare --net``): its loopback is set down, so that nothing comes
back any more and nothing is closed. Prints how the request ended, and after how many seconds.
"""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import time

from rover_kf import errors
from rover_kf.api import names
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from tests.support.pods import checkpoint_pod


def _set(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def _lose_power(home: pathlib.Path) -> None:
    asked = asyncio.Event()
    _set("up")

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await asyncio.Event().wait()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (home / "token").write_text("a token")
    peers = HttpPeerClient(checkpoint_pod.settings_of(home, port=port, pod="demo-worker-1"))
    await peers.start()
    waiting = asyncio.create_task(peers.forward(names.PATH_COMMIT_NAMED, b"{}"))
    await asked.wait()
    _set("down")
    begun = time.monotonic()
    try:
        await waiting
    except errors.ClusterUnavailable as error:
        print(f"{time.monotonic() - begun:.1f} {error}", flush=True)
    await peers.stop()


if __name__ == "__main__":
    asyncio.run(_lose_power(pathlib.Path(sys.argv[1])))
