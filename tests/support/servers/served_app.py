# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An application of aiohttp that answers real requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

from aiohttp import web


class Served:
    """An application on a loopback port, in a thread of its own."""

    def __init__(self, app: web.Application) -> None:
        self._app, self._loop = app, asyncio.new_event_loop()
        self._ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> str:
        self._thread.start()
        return self._ready.result(30)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        runner = web.AppRunner(self._app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self._ready.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
