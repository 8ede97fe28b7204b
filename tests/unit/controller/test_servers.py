# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's servers: TLS that renews without a restart, health that tells the truth."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time

import aiohttp
import pytest
from aiohttp import web

from controller import http_servers
from controller.webhook_certificate import CertificateSecret
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook.admission import make_app
from rover_kf.webhook.certificates import issue
from tests.support.faults.api_stand_in import failure, serving
from tests.support.jobs.job_manifests import make_job
from tests.support.pods import checkpoint_pod

CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/rover-kf-webhook"
)
SECRET = "/api/v1/namespaces/rover-kf-system/secrets/rover-kf-webhook"
HOOK = {"name": "inject.rover-kf.io", "clientConfig": {}}


@pytest.fixture
def api():
    with serving() as found:
        item = {"metadata": {"name": "rover-kf-webhook"}, "webhooks": [HOOK]}
        found.put(CONFIGURATION, item)
        yield found


@pytest.fixture
def port():
    return checkpoint_pod.free_port()


def secret_of(api):
    return CertificateSecret(
        KubernetesApi(api.client()),
        namespace="rover-kf-system",
        name="rover-kf-webhook",
        hook="inject.rover-kf.io",
        hosts=("localhost",),
    )


async def until(condition, within=60.0):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(webhook):
    task = asyncio.create_task(webhook.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def review(port, authority):
    context = ssl.create_default_context(cadata=authority.decode())
    body = {"request": {"uid": "1", "operation": "CREATE", "object": make_job()}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://localhost:{port}/mutate", data=json.dumps(body), ssl=context
        ) as response,
    ):
        return (await response.json())["response"]


def webhook_on(api, port):
    app = make_app(InjectionSettings("image"), dict)
    return http_servers.WebhookServer(app, secret_of(api), port)


def test_the_webhook_serves_once_it_is_trusted(api, port):
    """It listens with the Secret's certificate, and is ready when the API server trusts it."""

    async def scenario():
        webhook = webhook_on(api, port)
        assert not webhook.ready
        async with running(webhook):
            await until(lambda: webhook.ready)
            made = await asyncio.to_thread(secret_of(api).ensure, time.time())
            assert (await review(port, made.authority))["allowed"]

    asyncio.run(scenario())
    assert any(request[:2] == ("PATCH", CONFIGURATION) for request in api.requests)


def test_an_api_server_that_is_away_is_waited_for(api, port, monkeypatch):
    """While it does not answer the webhook is not ready and keeps asking."""
    monkeypatch.setattr(http_servers, "RETRY_SECONDS", 0.01)
    away = lambda *_: failure(503, "Unavailable", "away")  # noqa: E731 - removed again below
    api.hooks.append(away)

    async def scenario():
        webhook = webhook_on(api, port)
        async with running(webhook):
            await until(lambda: len(api.requests) > 3)
            assert not webhook.ready
            api.hooks.remove(away)
            await until(lambda: webhook.ready)

    asyncio.run(scenario())


def test_a_renewed_certificate_is_served_without_a_restart(api, port, monkeypatch):
    """A Secret that changed is used for new connections of the same listener."""
    monkeypatch.setattr(http_servers, "CHECK_SECONDS", 0.05)

    async def scenario():
        webhook = webhook_on(api, port)
        async with running(webhook):
            await until(lambda: webhook.ready)
            renewed = issue(("localhost",), time.time())
            data = {k: base64.b64encode(v).decode() for k, v in renewed.to_data().items()}
            with api.lock:
                api.put(SECRET, {"metadata": {"name": "rover-kf-webhook"}, "data": data})

            async def served():
                try:
                    return (await review(port, renewed.authority))["allowed"]
                except aiohttp.ClientConnectorCertificateError:
                    return False

            deadline = time.monotonic() + 60
            while not await served():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_health_tells_what_it_is_asked(port):
    """/healthz and /readyz answer 200 or 503 by their own question, at each request."""
    state = {"alive": True, "ready": False}

    async def codes():
        found = []
        async with aiohttp.ClientSession() as session:
            for path in ("/healthz", "/readyz"):
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    found.append(response.status)
        return found

    async def scenario():
        app = http_servers.make_health_app(lambda: state["alive"], lambda: state["ready"])
        assert isinstance(app, web.Application)
        async with http_servers.serve(app, port):
            assert await codes() == [200, 503]
            state.update(alive=False, ready=True)
            assert await codes() == [503, 200]

    asyncio.run(scenario())
