# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a coordinator follows another one: generations, and copies of its state in other pods.

A pod's first coordinator has the time as its generation, as the API server told it in the pod's
token, so that no node's clock counts; the next one in that pod has one more. What changes is
written to the pod's volume before anybody is answered, and offered to a few other pods with their
answers. Whoever has a copy says so with each request: a coordinator in a new pod asks for a newer
one than it knows before it answers. One that hears of a greater generation than its own was
replaced, and answers nobody any more (docs/protocol.md, "Generations").
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.coordinator_state import STATE_VERSION, CoordinatorState
from rover_kf.api.status import Ack
from rover_kf.sidecar.http.app import error_response, read, reply
from rover_kf.sidecar.http.token_clock import TokenClock
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.state_replica import (
    COORDINATOR_FILE,
    StateFile,
    from_header,
    to_header,
)

_log = logging.getLogger(__name__)

_NUMBER = re.compile("[0-9]{1,18}")

REPLICA_COUNT = 3
"""Pods besides the coordinator's own that keep a copy."""
REFRESH_SECONDS = 10.0
"""How old the figures in a copy may be that change all the time."""
OPENING_SECONDS = 10.0
"""How long a coordinator in a new pod takes a greater generation for its predecessor's: the clocks
of API servers may differ."""

ExportState = Callable[[], CoordinatorState]
ImportState = Callable[[CoordinatorState, bool], None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CoordinatorFailover:
    """One a coordinator.

    Args:
        settings: of its sidecar.
        export_state: gives the state; generation and revision are filled in here.
        import_state: goes on from a state; told whether its round still runs as far as is known.
        on_changed: takes this coordinator's generation when it begins, and when it is raised.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        export_state: ExportState,
        import_state: ImportState,
        on_changed: Callable[[int], None],
    ) -> None:
        self._pod, self._export_state, self._import_state = settings.pod, export_state, import_state
        self._on_changed = on_changed
        self._clock = TokenClock(settings)
        self._file = StateFile(settings.volume_path, settings.pod_uid, COORDINATOR_FILE)
        self.generation = 0
        self.successor = 0
        """Generation of the coordinator that has replaced this one; 0: none has."""
        self._state: CoordinatorState | None = None
        self._imported = (0, 0)
        self._open_until = 0.0
        self._fingerprint: object = None
        self._persisted_at = 0.0
        self._replica_pods: frozenset[str] = frozenset()

    def begin(self, after: int) -> None:
        """Resume from what an earlier coordinator of this pod knew, if there was one.

        Args:
            after: the greatest generation that storage knows; this one's is greater.
        """
        kept = self._file.read()
        if kept is None or kept.state is None:
            started = int(self._clock.pod_started_at() * 1000)
            self._open_until = time.monotonic() + OPENING_SECONDS
            self._set_generation(max(started, after + 1))
            return
        self._imported = from_header(to_header(kept.state))
        self._set_generation(max(kept.generation, after) + 1)
        self._import_state(kept.state, True)  # noqa: FBT003 - the callback's one flag

    def _set_generation(self, generation: int) -> None:
        self.generation = generation
        self._on_changed(generation)

    def persist_state(self, fingerprint: object, members: Iterable[str]) -> None:
        """Write the state down if it has changed; before anybody is answered.

        Args:
            fingerprint: differs whenever what must not be lost differs.
            members: pods of the round that runs.
        """
        now, fingerprint = time.monotonic(), (self.generation, fingerprint)
        if fingerprint == self._fingerprint and now - self._persisted_at < REFRESH_SECONDS:
            return
        if fingerprint != self._fingerprint:
            others = (pod for pod in members if pod != self._pod)
            self._replica_pods = frozenset(
                pod for pod, _ in zip(others, range(REPLICA_COUNT), strict=False)
            )
        self._fingerprint, self._persisted_at = fingerprint, now
        revision = self._state.revision + 1 if self._state else 1
        self._state = dataclasses.replace(
            self._export_state(), generation=self.generation, revision=revision
        )
        if not self.successor:
            self._file.write(self.generation, self._state)

    def on_generation(self, generation: int) -> None:
        """Somebody knows a coordinator of that generation."""
        if generation <= self.generation or self.successor:
            return
        if time.monotonic() < self._open_until:
            self._set_generation(generation + 1)
            return
        self.successor = generation
        _log.error("generation %d has replaced this one, %d", generation, self.generation)

    def routes(self) -> list[web.RouteDef]:
        """For the coordinator's TCP port."""
        return [
            web.get(names.PATH_STATE, self._on_fetch),
            web.post(names.PATH_STATE, self._on_copy),
        ]

    def guard_routes(self, routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
        """The routes, as a coordinator that may be replaced, or know too little, answers them."""
        return [
            web.RouteDef(
                route.method,
                route.path,
                self._guard_handler(cast("Handler", route.handler)),
                route.kwargs,
            )
            for route in routes
        ]

    def _guard_handler(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path != names.PATH_STATUS:  # which anybody may ask, without a token
                self.on_generation(_number(request.headers.get(names.GENERATION_HEADER, "")))
            try:
                self._check()
                if self._needs_replica(request):
                    found: web.StreamResponse = web.Response(status=names.STATUS_COPY_WANTED)
                else:
                    found = await handler(request)
                self._check()  # it may have been waited for long
            except errors.RoverError as error:
                found = error_response(error)
            found.headers[names.GENERATION_HEADER] = str(self.generation)
            wanted = found.status == names.STATUS_COPY_WANTED
            keeper = request.headers.get(names.POD_HEADER) in self._replica_pods
            if self._state and keeper and not wanted:
                found.headers[names.COPY_HEADER] = to_header(self._state)
            return found

        return answer

    def _check(self) -> None:
        if self.successor:
            raise errors.ClusterUnavailable(
                f"this coordinator, generation {self.generation}, was replaced by generation "
                f"{self.successor}: ask the job's first pod by its name"
            )

    def _needs_replica(self, request: web.Request) -> bool:
        """Whether the asker's copy has to come first; it is not to be replaced by ours before."""
        copy = from_header(request.headers.get(names.COPY_HEADER, ""))
        brought = request.path == names.PATH_STATE and request.method == "POST"
        return self._imported < copy < (self.generation, 0) and not brought

    async def _on_fetch(self, _: web.Request) -> web.Response:
        return reply(self._state) if self._state else web.Response(status=404)

    async def _on_copy(self, request: web.Request) -> web.Response:
        state = await read(request, CoordinatorState)
        told = from_header(to_header(state))
        if not self._imported < told < (self.generation, 0):
            return reply(Ack(done=False, reason="a newer one is known"))
        self._imported = told
        if state.version != STATE_VERSION:
            return reply(Ack(done=False, reason=f"version {state.version} is unknown"))
        _log.info("goes on with the state of generation %d", state.generation)
        self._import_state(state, False)  # noqa: FBT003 - the callback's one flag
        return reply(Ack())


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0
