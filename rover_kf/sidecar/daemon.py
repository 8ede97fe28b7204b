# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Joins the parts of a sidecar and keeps them running until SIGTERM.

Two listeners: the Unix socket for launcher and trainers of the pod, the TCP port for other pods,
the controller, probes and Prometheus. A native sidecar that ends is restarted and counted against
the job's backoffLimit, so a part that fails is logged and tried again; the process goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import signal

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.membership import CoordinatorAddress, Identity, PodAddresses
from rover_kf.api.status import Ack
from rover_kf.coordinator import data_service
from rover_kf.coordinator.address_broadcast import AddressBroadcaster
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.coordinator.service import CoordinatorService
from rover_kf.sidecar.checkpoint_service import CheckpointService
from rover_kf.sidecar.event_log import EventForwarder, EventLog
from rover_kf.sidecar.http.app import (
    IDLE_SECONDS,
    LINGER_SECONDS,
    MAX_BODY_BYTES,
    MAX_LOCAL_BODY_BYTES,
    make_application,
    read,
    reply,
)
from rover_kf.sidecar.http.authentication import make_authenticator
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from rover_kf.sidecar.persist.job_storage import open_job_storage
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.tls.reloading import create_tls

_log = logging.getLogger(__name__)

BIND_RETRY_SECONDS = 0.5
BACKLOG = 4096
"""Connections that may wait to be taken: all pods of a job come at once, and one that finds no room
tries again only after seconds."""
SHUTDOWN_SECONDS = 1.0
"""That open requests have when the sidecar stops, such as those of slots; long polls have none."""
RENDEZVOUS = (
    names.PATH_JOIN,
    names.PATH_WATCH,
    names.PATH_LEAVE,
    names.PATH_TAKEN,
    names.PATH_FAILURE,
    names.PATH_FINISH,
    names.PATH_STACKS,
    names.PATH_PREFLIGHT,
)
LOCAL_IDLE_SECONDS = 3600.0
"""The pod's own processes may keep a connection for as long as they like."""
MISDIRECTED = 421


class Daemon:
    """One sidecar."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._event_log = EventLog(settings.pod)
        self._tls = create_tls(settings, self._report_certificate)
        self._peers = HttpPeerClient(settings, self._tls)
        self._event_forwarder = EventForwarder(settings.pod, self._peers)
        story = self._event_log if settings.is_coordinator else self._event_forwarder
        self._storage = place = open_job_storage(settings)
        self._checkpoints = CheckpointService(settings, self._peers, story, place)
        self._peers.state_replica.on_replaced = self._checkpoints.report_all_slots
        self._coordinator = (
            CoordinatorService(
                settings,
                self._event_log,
                CommitService(
                    settings, story, self._peers, storage=place.checkpoints if place else None
                ),
                self._peers.state_replica,
            )
            if settings.is_coordinator
            else None
        )
        self._broadcaster = (
            AddressBroadcaster(settings, self._peers) if settings.is_coordinator else None
        )
        self._runners: list[web.AppRunner] = []

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        if self._tls is not None and not await self._tls.start(stopped):
            return
        await self.start()
        await stopped.wait()
        await self.stop()

    async def start(self) -> None:
        """Open both listeners and begin the background work."""
        for folder in (names.RUN_DIR, names.ARENA_DIR):
            make_shared(self._settings.volume_path / folder)
        await self._peers.start()
        if self._coordinator is not None:
            await self._coordinator.start()
        else:
            await self._event_forwarder.start()
        await self._listen(self._tcp_routes(), local=False)
        await self._checkpoints.start()
        await self._listen(self._local_routes(), local=True)
        _log.info("%s serves on %s:%d", self._settings.pod, *self._address())

    async def stop(self) -> None:
        """Close what start opened; the coordinator first waits for members that still end."""
        if self._broadcaster is not None:
            await self._broadcaster.stop()
        if self._coordinator is not None:
            await self._coordinator.stop()
        await self._event_forwarder.stop()
        await self._checkpoints.stop()
        if self._storage is not None:
            await asyncio.to_thread(self._storage.close)
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        await self._peers.stop()
        if self._tls is not None:
            await self._tls.stop()

    def _report_certificate(self, message: str) -> None:
        # All pods have the same one: one of them tells it of the job.
        if self._settings.is_coordinator:
            self._event_log.record(names.EVENT_CERTIFICATE_INVALID, message, warning=True)
        else:
            _log.warning("%s", message)

    def _address(self) -> tuple[str, int]:
        return self._settings.address, self._settings.port

    async def _listen(self, routes: list[web.RouteDef], *, local: bool) -> None:
        gate = None if local else make_authenticator(self._settings)
        runner = web.AppRunner(
            make_application(
                routes, gate, max_body_bytes=MAX_LOCAL_BODY_BYTES if local else MAX_BODY_BYTES
            ),
            access_log=None,
            handler_cancellation=True,  # a closed connection is news (rendezvous)
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=LOCAL_IDLE_SECONDS if local else IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
        )
        await runner.setup()
        self._runners.append(runner)
        if local:
            await self._open_socket(runner)
            return
        while True:
            site = web.TCPSite(
                runner,
                *self._address(),
                reuse_address=True,
                backlog=BACKLOG,
                ssl_context=self._tls.server_context if self._tls else None,
            )
            try:
                await site.start()
            except OSError as error:
                # A predecessor that is not gone yet, or the address is not up yet.
                _log.warning("cannot listen on %s:%d: %s", *self._address(), error)
                await asyncio.sleep(BIND_RETRY_SECONDS)
                continue
            return

    async def _open_socket(self, runner: web.AppRunner) -> None:
        path = self._settings.volume_path / names.SOCKET
        # Under another name until it can be used by any user: clients never see it half-made.
        early = path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            early.unlink()
        await web.UnixSite(runner, str(early)).start()
        early.chmod(0o666)
        early.replace(path)

    def _local_routes(self) -> list[web.RouteDef]:
        routes = [
            web.get(names.PATH_SELF, self._on_self),
            web.get(names.PATH_HEALTH, self._on_health),
            *self._checkpoints.local_routes(),
        ]
        if self._coordinator is not None:
            own = [*map(self._announce_on_join, self._coordinator.local_routes())]
            return [
                *routes,
                *(map(self._proxy_data_route, own) if self._settings.ledger_host else own),
            ]
        forwarded = [web.post(path, self._forward) for path in (*RENDEZVOUS, *data_service.PATHS)]
        return [*routes, *forwarded, web.post(names.PATH_SAMPLES, self._forward)]

    def _tcp_routes(self) -> list[web.RouteDef]:
        routes = [
            web.get(names.PATH_HEALTH, self._on_health),
            web.get(names.PATH_METRICS, self._on_metrics),
            *self._checkpoints.peer_routes(),
        ]
        if self._coordinator is not None:
            located = web.post(names.PATH_PODS, self._on_pods)
            return [*routes, located, *self._coordinator.routes()]
        told = web.post(names.PATH_COORDINATOR, self._on_coordinator_address)
        return [*routes, told, web.route("*", "/v1/{path:.*}", self._on_misdirected)]

    def _announce_on_join(self, route: web.RouteDef) -> web.RouteDef:
        """The launcher's join begins to tell the other pods where it leads.

        Sooner, their names may not be known yet, and name servers keep that for half a minute.
        """
        if route.path != names.PATH_JOIN or self._broadcaster is None:
            return route
        herald, join = self._broadcaster, route.handler

        async def announce_and_join(request: web.Request) -> web.StreamResponse:
            herald.begin()
            found: web.StreamResponse = await join(request)
            return found

        return web.post(route.path, announce_and_join)

    def _proxy_data_route(self, route: web.RouteDef) -> web.RouteDef:
        """Records come from another world's sidecar: this one has no ledger."""
        return (
            web.post(route.path, self._forward_data) if route.path in data_service.PATHS else route
        )

    async def _forward_data(self, request: web.Request) -> web.Response:
        status, body = await self._peers.forward_data(request.path, await request.read())
        return web.Response(status=status, body=body, content_type="application/json")

    async def _on_coordinator_address(self, request: web.Request) -> web.Response:
        told = await read(request, CoordinatorAddress)
        self._peers.set_coordinator_address(told.address)
        return reply(Ack())

    async def _on_pods(self, request: web.Request) -> web.Response:
        told = await read(request, PodAddresses)
        if self._broadcaster is not None:
            self._broadcaster.locate(told.addresses)
        return reply(Ack())

    async def _on_self(self, _: web.Request) -> web.Response:
        settings = self._settings
        return reply(
            Identity(
                job=settings.job,
                pod=settings.pod,
                address=settings.address,
                node_rank=settings.node_rank,
                coordinator=settings.is_coordinator,
                node=settings.node,
                preflight=settings.policy.preflight.mode != "off",
            )
        )

    async def _on_health(self, _: web.Request) -> web.Response:
        return reply(Ack())

    async def _on_metrics(self, _: web.Request) -> web.Response:
        from rover_kf.metrics import exporter  # noqa: PLC0415 - not needed to start

        status = self._coordinator.status(0) if self._coordinator is not None else None
        settings = self._settings
        body = exporter.render(
            settings.pod,
            settings.job,
            status,
            event_counts=self._event_log.counts,
            storage=settings.policy.checkpoint.path is not None,
            silent_seconds=self._storage.silent_seconds if self._storage else 0.0,
            certificate_ends=self._tls.not_after if self._tls else 0.0,
        )
        return web.Response(body=body, headers={"Content-Type": exporter.CONTENT_TYPE})

    async def _forward(self, request: web.Request) -> web.Response:
        self._peers.allow_lookups()
        status, body = await self._peers.forward(request.path, await request.read())
        return web.Response(status=status, body=body, content_type="application/json")

    async def _on_misdirected(self, request: web.Request) -> web.Response:
        reason = (
            f"{self._settings.pod} is not the coordinator; ask {self._settings.job}'s first pod"
        )
        return web.json_response(
            {"error": "InputError", "message": f"{request.path}: {reason}"}, status=MISDIRECTED
        )


def make_shared(folder: pathlib.Path) -> None:
    """Make a folder that every user of the pod may write to: the image's user is unknown."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # the init container made it, as another user
        folder.chmod(0o777)
