# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training process's line to its sidecar: HTTP over the Unix socket, one request a connection.

Checkpointer and reporter use it. Standard library only.
"""

from __future__ import annotations

import functools
import http.client
import logging
import pathlib
import select
import time
from collections.abc import Callable
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.api.checkpoints import WaitRequest
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.system.unix_http import UnixConnection

_log = logging.getLogger("rover_kf")

T = TypeVar("T")

Meanwhile = Callable[[Callable[[], bool]], None]
"""Does something else while an answer is on its way, and is told whether it is there."""

_PAUSE_SECONDS = 0.1
_OK = 200


class SidecarClient:
    """A client of this pod's sidecar."""

    def __init__(self, shared_dir: pathlib.Path) -> None:
        self._socket = shared_dir / names.SOCKET

    def request(
        self,
        path: str,
        message: object,
        reply: type[T],
        *,
        timeout: float,
        patience: float = 0.0,
        meanwhile: Meanwhile | None = None,
    ) -> T:
        """POST a message and wait for the answer, ``timeout`` seconds for each attempt.

        A sidecar that is away is retried for ``patience`` seconds (it restarts). ``meanwhile`` runs
        in this thread once the request is out: another thread would take the interpreter from this
        one at every turn.

        Raises:
            SidecarUnavailable: it did not answer.
            RoverError: of the class that the sidecar answered with.
            ProtocolError: the answer cannot be read.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                now, meanwhile = meanwhile, None
                status, body = self._post(path, codec.dumps(message), timeout, now)
                break
            except (OSError, http.client.HTTPException) as cause:
                if time.monotonic() >= deadline:
                    raise errors.SidecarUnavailable(
                        f"the sidecar at {self._socket} does not answer to {path}: {cause!r}; see "
                        f"the log of container {names.SIDECAR_CONTAINER}"
                    ) from cause
                time.sleep(_PAUSE_SECONDS)
        if status != _OK:
            raise error_wire.decode_error(status, body, unreadable=errors.SidecarUnavailable)
        return codec.loads(reply, body)

    def wait(self, state: State, level: str, *, timeout: float, patience: float) -> bool:
        """Wait until a state (or a newer one) is safe; log the reason if it is not.

        ``level`` is ``memory``, ``replica`` or ``durable``; times are in seconds.

        Raises:
            InputError: an unknown level.
            SidecarUnavailable: it did not answer.
        """
        reply = self.request(
            names.PATH_WAIT,
            WaitRequest(state, level, timeout),
            Ack,
            timeout=timeout + patience,
            patience=patience,
        )
        if not reply.done:
            _log.warning("rover-kf: step %d is not %s: %s", state.step, level, reply.reason)
        return reply.done

    def _post(
        self, path: str, body: bytes, timeout: float, meanwhile: Meanwhile | None
    ) -> tuple[int, bytes]:
        connection = UnixConnection(self._socket, timeout)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            if meanwhile is not None:
                meanwhile(functools.partial(_is_readable, connection))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
