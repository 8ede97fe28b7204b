# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What every HTTP answer of a sidecar has in common: errors as JSON, a bound on bodies, the token.

daemon.py makes its two applications here: the Unix socket's, which needs no token (the volume is
the pod's own), and the TCP port's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from aiohttp import web

from rover_kf import errors
from rover_kf.api import codec, names, refusals

T = TypeVar("T")

LONGEST_BODY = 4 << 20
"""Bytes; the longest message is a batch of step samples or the holdings of a large pod."""

OPEN_PATHS = frozenset({names.PATH_HEALTH, names.PATH_METRICS, names.PATH_STATUS})
"""Read-only and open: probes, Prometheus and the controller's GET."""

_STATUS = {
    errors.ArenaTooSmall: 413,
    errors.Conflict: 409,
    errors.ClusterUnavailable: 503,
    errors.SidecarUnavailable: 503,
    errors.StorageFailed: 507,
    errors.MessageError: 400,
    errors.InputError: 400,
}

LONG_POLLS = frozenset(
    {
        names.PATH_JOIN,
        names.PATH_WATCH,
        names.PATH_FINISH,
        names.PATH_COMMIT_NAMED,
        names.PATH_COMMIT_WAIT,
        names.PATH_REPLICATE,
        names.PATH_PARITY_MADE,
        names.PATH_REPLICA_DIGEST,
    }
)
"""Answered when there is news, and asked again by whoever gets no answer."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate(Protocol):
    """Decides who may ask (identity.py)."""

    async def admit(self, authorization: str) -> bool:
        """Whether the value of the Authorization header is good."""


def reply(message: object, status: int = 200) -> web.Response:
    """A message as the body."""
    return web.Response(body=codec.dumps(message), content_type="application/json", status=status)


async def read(request: web.Request, kind: type[T]) -> T:
    """The body as a message.

    Raises:
        MessageError: it is not that message.
    """
    return codec.loads(kind, await request.read())


def refusal(error: errors.RoverError) -> web.Response:
    """The answer that tells of an error."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _refusal(type(error).__name__, str(error), status)


class _Waiting:
    """Requests that wait for news. The sidecar's end is not held up by them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.contextmanager
    def listed(self, path: str) -> Iterator[None]:
        """While the block answers a request of that path."""
        task = asyncio.current_task()
        if task is None or path not in LONG_POLLS:
            yield
            return
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def end(self, _: web.Application) -> None:
        """Close their connections."""
        for task in tuple(self._tasks):
            task.cancel()


def application(routes: list[web.RouteDef], gate: Gate | None) -> web.Application:
    """An application; without a gate everybody may ask."""
    waiting = _Waiting()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if gate is not None and not (
                request.path in OPEN_PATHS and request.method in ("GET", "HEAD")
            ):
                header = request.headers.get("Authorization", "")
                if not await gate.admit(header):
                    return _refusal("InputError", "no valid token of this job's pods", 401)
            with waiting.listed(request.path):
                return await handler(request)
        except errors.RoverError as error:
            return refusal(error)
        except web.HTTPException as error:
            return _refusal("InputError", f"{error.reason}: {request.path}", error.status)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a mistake in one answer must not end the rest
            _log.exception("mistake while answering %s %s", request.method, request.path)
            return _refusal("RoverError", f"a mistake in the sidecar: {error!r}", 500)

    made = web.Application(middlewares=[guard], client_max_size=LONGEST_BODY)
    made.add_routes(routes)
    made.on_shutdown.append(waiting.end)
    return made


def _refusal(kind: str, message: str, status: int) -> web.Response:
    body = refusals.to_bytes(kind, message)
    return web.Response(body=body, content_type="application/json", status=status)
