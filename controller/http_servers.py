# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's two HTTP servers: the webhook with TLS, and plain health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.webhook_certificate import CertificateSecret
from rover_kf import errors
from rover_kf.history.store import SqlHistory
from rover_kf.webhook.certificates import Certificates

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CHECK_SECONDS = 300.0
"""How often the Secret is read again: renewed by us, by another replica, or by hand."""
RETRY_SECONDS = 2.0

_log = logging.getLogger(__name__)


class WebhookServer:
    """Serves an application over TLS with the Secret's certificates, also across renewals.

    Args:
        app: from rover_kf.webhook.admission.
        secret: where the certificates are.
        port: TCP port.
    """

    def __init__(self, app: web.Application, secret: CertificateSecret, port: int) -> None:
        self._app, self._secret, self._port = app, secret, port
        self.ready = False
        """Whether the API server can call it: it listens and is trusted."""

    async def run(self) -> None:
        """Serve until cancelled; an API server that does not answer is asked again."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        loaded: Certificates | None = None
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    found = await asyncio.to_thread(self._secret.ensure, time.time())
                    if found != loaded:
                        _load(context, found)
                    if loaded is None:
                        await stack.enter_async_context(serve(self._app, self._port, context))
                    loaded = found
                    if await asyncio.to_thread(self._secret.trust, found):
                        _log.info("the API server now trusts the webhook's certificate")
                except errors.RoverError as cause:
                    _log.warning("webhook: %s; trying again in %g s", cause, RETRY_SECONDS)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self.ready = True
                await asyncio.sleep(CHECK_SECONDS)


@contextlib.asynccontextmanager
async def serve(
    app: web.Application, port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Listen on all addresses while the block runs."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, ssl_context=context).start()
        yield
    finally:
        await runner.cleanup()


def make_health_app(
    alive: Callable[[], bool], ready: Callable[[], bool], metrics: Callable[[], str] | None = None
) -> web.Application:
    """/healthz (restart me if not), /readyz (send me reviews) and /metrics, if there are any."""

    def make_probe(question: Callable[[], bool]) -> Handler:
        async def respond(_: web.Request) -> web.StreamResponse:
            good = question()
            return web.Response(text="ok" if good else "not ok", status=200 if good else 503)

        return respond

    app = web.Application()
    app.router.add_get("/healthz", make_probe(alive))
    app.router.add_get("/readyz", make_probe(ready))
    if metrics is not None:
        text = metrics

        async def serve_metrics(_: web.Request) -> web.StreamResponse:
            return web.Response(text=text())

        app.router.add_get("/metrics", serve_metrics)
    return app


class HistoryMetrics(Collector):
    """The history's state; read at each scrape, so that nothing has to be kept in step.

    Args:
        history: the state is of it.
    """

    def __init__(self, history: SqlHistory) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """A gauge and a counter."""
        yield GaugeMetricFamily(
            "rover_kf_history_available",
            "Whether the history's last use went well.",
            value=self._history.available,
        )
        yield CounterMetricFamily(
            "rover_kf_history_failures",
            "Uses of the history that did not go well.",
            value=self._history.failures,
        )


def _load(context: ssl.SSLContext, certificates: Certificates) -> None:
    """New connections use them; ssl reads a key from files only."""
    with tempfile.TemporaryDirectory() as home:
        chain, key = pathlib.Path(home) / "tls.crt", pathlib.Path(home) / "tls.key"
        chain.write_bytes(certificates.certificate)
        key.write_bytes(certificates.key)
        context.load_cert_chain(chain, key)
