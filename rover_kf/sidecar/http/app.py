# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The common part of a sidecar's HTTP answers: JSON errors, bounds on bodies, the token.

daemon.py creates two applications: the Unix socket's needs no token, since the volume is the pod's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from aiohttp import web

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.api.membership import Round

T = TypeVar("T")

MAX_BODY_BYTES = 4 << 20
"""Bytes; the longest message is a batch of step samples or the holdings of a large pod."""

MAX_LOCAL_BODY_BYTES = 64 << 20
"""From the pod's own processes, which name each tensor that they hold a part of."""

BODY_SECONDS = 30.0
"""In which a request's body has to be there."""

IDLE_SECONDS = 75.0
"""After which a connection is closed on which no whole request has come: who opens many and says
little must not take the room of the job's pods. They close theirs after 15."""

LINGER_SECONDS = 2.0
"""That a body is still taken, and thrown away, whose request is refused."""

PUBLIC_PATHS = frozenset({names.PATH_HEALTH, names.PATH_METRICS, names.PATH_STATUS})
"""Read-only and open: probes, Prometheus and the controller's GET."""

_STATUS = {
    errors.ArenaTooSmall: 413,
    errors.Conflict: 409,
    errors.ClusterUnavailable: 503,
    errors.SidecarUnavailable: 503,
    errors.StorageError: 507,
    errors.CheckpointError: 409,
    errors.ProtocolError: 400,
    errors.InputError: 400,
}

_MAX_COUNTS = {"world_size": 1 << 20, "processes": 1 << 12}
"""Of ranks and of a pod's processes at most: for each of them something is kept."""

LONG_POLLS = frozenset(
    {
        names.PATH_JOIN,
        names.PATH_WATCH,
        names.PATH_FINISH,
        names.PATH_COMMIT_NAMED,
        names.PATH_COMMIT_READ,
        names.PATH_COMMIT_WAIT,
        names.PATH_REPLICATE,
        names.PATH_KEPT,
        names.PATH_REPLICA_DIGEST,
    }
)
"""Answered when there is news, and asked again by whoever gets no answer."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Authenticator(Protocol):
    """Decides who may ask (identity.py)."""

    async def admit(self, authorization: str, path: str) -> bool:
        """Whether the value of the Authorization header opens the path."""


def reply(message: object, status: int = 200) -> web.Response:
    """A message as the body."""
    return web.Response(body=codec.dumps(message), content_type="application/json", status=status)


def compressed_reply(request: web.Request, message: object) -> web.Response:
    """A long message as the body, compressed if who asks takes that, as sidecars do."""
    if "deflate" not in request.headers.get("Accept-Encoding", ""):
        return reply(message)
    return web.Response(
        body=zlib.compress(codec.dumps(message), 1),
        content_type="application/json",
        headers={"Content-Encoding": "deflate"},
    )


async def read(request: web.Request, kind: type[T]) -> T:
    """The body as a message.

    Raises:
        ProtocolError: it is not that message, or it speaks of more processes than a job can have.
    """
    found = codec.loads(kind, await request.read())
    world = getattr(found, "world", None)
    members = world.members if isinstance(world, Round) else ()
    for part in (found, getattr(found, "member", None), world, *members):
        for name, most in _MAX_COUNTS.items():
            count = getattr(part, name, 1)
            if not 1 <= count <= most:
                raise errors.ProtocolError(f"{name} is {count}; allowed: 1 to {most}")
    if isinstance(world, Round) and world.world_size != sum(one.processes for one in members):
        raise errors.ProtocolError(f"a world of {world.world_size} has other members' processes")
    return found


def error_response(error: errors.RoverError) -> web.Response:
    """The answer that tells of an error."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _make_error_response(type(error).__name__, str(error), status)


class _LongPollTasks:
    """Requests that wait for news. The sidecar's end is not held up by them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.contextmanager
    def tracking(self, path: str) -> Iterator[None]:
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

    async def cancel(self, _: web.Application) -> None:
        """Close their connections."""
        for task in tuple(self._tasks):
            task.cancel()


def make_application(
    routes: list[web.RouteDef],
    authenticator: Authenticator | None,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> web.Application:
    """Create an application; without an authenticator every request is served."""
    waiting = _LongPollTasks()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if authenticator is not None and not (
                request.path in PUBLIC_PATHS and request.method in ("GET", "HEAD")
            ):
                header = request.headers.get("Authorization", "")
                if not await authenticator.admit(header, request.path):
                    return _make_error_response(
                        "InputError", "no valid token of this job's pods", 401
                    )
            await _read_body(request)
            with waiting.tracking(request.path):
                return await handler(request)
        except errors.RoverError as error:
            return error_response(error)
        except web.HTTPException as error:
            return _make_error_response(
                "InputError", f"{error.reason}: {request.path}", error.status
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a mistake in one answer must not end the rest
            _log.exception("mistake while answering %s %s", request.method, request.path)
            return _make_error_response("RoverError", f"a mistake in the sidecar: {error!r}", 500)

    made = web.Application(middlewares=[guard], client_max_size=max_body_bytes)
    made.add_routes(routes)
    made.on_shutdown.append(waiting.cancel)
    return made


async def _read_body(request: web.Request) -> None:
    """Wait for the body, which the request keeps: nothing is done for half a message."""
    if not request.body_exists:
        return
    try:
        await asyncio.wait_for(request.read(), BODY_SECONDS)
    except asyncio.TimeoutError as cause:
        message = f"the body did not come within {BODY_SECONDS:g} s"
        raise errors.ProtocolError(message) from cause
    except (web.RequestPayloadError, ConnectionError) as cause:
        raise errors.ProtocolError(f"the body cannot be read: {cause}") from cause


def _make_error_response(kind: str, message: str, status: int) -> web.Response:
    body = error_wire.encode_error(kind, message)
    return web.Response(body=body, content_type="application/json", status=status)
