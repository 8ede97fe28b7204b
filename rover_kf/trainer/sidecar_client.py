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
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.api.checkpoints import ArenaReply, ArenaRequest, WaitRequest
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.system.unix_http import UnixConnection

_TIMEOUT_SECONDS = 5.0


class DurabilityListener(Protocol):
    """An entry of a state that reports how far the job is."""

    def state_saved(self, is_durable: Callable[[], bool]) -> None:
        """Note that the state was saved as it is now; return at once.

        ``is_durable`` requests from the sidecar whether this step or a newer one is durable by now,
        from any thread. It raises SidecarUnavailable if the sidecar does not answer.
        """


def notify(saved_state: State, state: Mapping[str, object], sidecar: SidecarClient) -> None:
    """Notify the listeners of a state that it was saved."""
    for value in state.values():
        # Of the class: to ask a module for what it does not have takes longer than all the rest.
        saved = getattr(type(value), DurabilityListener.state_saved.__name__, None)
        if saved is not None:
            saved(value, functools.partial(_is_durable, saved_state, sidecar))


def _is_durable(state: State, sidecar: SidecarClient) -> bool:
    # A question of 0 seconds waits for nothing, and hurries nobody.
    asked = WaitRequest(state, "durable", 0.0)
    return sidecar.request(names.PATH_WAIT, asked, Ack, timeout=_TIMEOUT_SECONDS).done


_log = logging.getLogger("rover_kf")

T = TypeVar("T")

Meanwhile = Callable[[Callable[[], bool]], None]
"""Does something else while an answer is on its way, and is told whether it is there."""

_PAUSE_SECONDS = 0.1
_OK = 200
_ARENA_SECONDS = 300.0


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

    def request_arena(self, local_rank: int, slot_bytes: int, *, patience: float) -> ArenaReply:
        """Request an arena whose slots have so many bytes.

        Raises:
            SidecarUnavailable: the sidecar did not answer.
        """
        request = ArenaRequest(local_rank, slot_bytes)
        return self.request(
            names.PATH_ARENA, request, ArenaReply, timeout=_ARENA_SECONDS, patience=patience
        )

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
