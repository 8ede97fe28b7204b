# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to the pod's own sidecar over its Unix socket; used by the agent.

``ask`` blocks. ``Call`` runs one in a thread and posts its outcome to the agent's queue, and can
be cancelled: that closes the connection, which the coordinator understands as withdrawal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import pathlib
import queue
import socket
import threading
from typing import Any, Generic, TypeVar

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.system.unix_http import UnixConnection

T = TypeVar("T")

LONGEST_POLL = 30.0
"""Seconds after which an unanswered request counts as lost; long polls end after about one."""


class SidecarConnector:
    """Asks the sidecar whose socket lies below the shared volume."""

    def __init__(self, shared_dir: pathlib.Path) -> None:
        self.socket_path = str(shared_dir / names.SOCKET)

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        return UnixConnection(self.socket_path, timeout)

    def request(
        self, path: str, message: object, reply: type[T], *, timeout: float = LONGEST_POLL
    ) -> T:
        """POST the message (GET if it is None) and read the reply.

        Raises:
            SidecarUnavailable: nobody answers on the socket.
            RoverError: of the class that the sidecar answered with.
        """
        connection = self.connection(timeout)
        try:
            return exchange(connection, path, message, reply)
        finally:
            connection.close()


def exchange(
    connection: http.client.HTTPConnection, path: str, message: object, reply: type[T]
) -> T:
    """Send one request on the connection and read its reply."""
    method, body = ("GET", None) if message is None else ("POST", codec.dumps(message))
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, data = response.status, response.read()
    except (OSError, http.client.HTTPException) as cause:
        raise errors.SidecarUnavailable(f"the pod's sidecar did not answer {path}: {cause}") from (
            cause
        )
    if status >= http.HTTPStatus.BAD_REQUEST:
        raise error_wire.decode_error(status, data, unreadable=errors.SidecarUnavailable)
    return codec.loads(reply, data)


@dataclasses.dataclass(frozen=True, slots=True)
class CallCompleted:
    """A call's outcome, in the agent's queue."""

    call: Call[Any]
    value: Any
    error: errors.RoverError | None


class Call(Generic[T]):
    """One request in flight."""

    def __init__(
        self,
        client: SidecarConnector,
        path: str,
        message: object,
        *,
        reply: type[T],
        outcomes: queue.SimpleQueue[Any],
        timeout: float = LONGEST_POLL,
    ) -> None:
        self._connection = client.connection(timeout)
        self._outcomes = outcomes
        self._request = (path, message, reply)
        self._cancelled = threading.Event()

    def start(self) -> Call[T]:
        """Send it; the outcome comes as Replied, unless cancelled before."""
        path = self._request[0]
        try:
            threading.Thread(target=self._run, daemon=True, name=f"call {path}").start()
        except RuntimeError as cause:  # the pod's limit of processes, for now
            error = errors.SidecarUnavailable(f"{path} cannot be asked: {cause}")
            self._outcomes.put(CallCompleted(self, None, error))
        return self

    def cancel(self) -> None:
        """Close the connection; no outcome will come."""
        self._cancelled.set()
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # it may be closed already
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        value: T | None = None
        error: errors.RoverError | None = None
        try:
            value = exchange(self._connection, *self._request)
        except errors.RoverError as found:
            error = found
        finally:
            self._connection.close()
        if not self._cancelled.is_set():
            self._outcomes.put(CallCompleted(self, value, error))
