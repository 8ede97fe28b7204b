# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training process's line to its sidecar: HTTP over the Unix socket, one request a connection.

Checkpointer and reporter use it. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import pathlib
import socket
import time
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import codec, names

T = TypeVar("T")

_PAUSE_SECONDS = 0.1
_OK = 200


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: pathlib.Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file in place of host and port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Link:
    """The way to the sidecar.

    Args:
        home: mount path of the shared volume.
    """

    def __init__(self, home: pathlib.Path) -> None:
        self._socket = home / names.SOCKET

    def ask(
        self, path: str, message: object, reply: type[T], *, timeout: float, patience: float = 0.0
    ) -> T:
        """POST a message and wait for the answer.

        Args:
            path: one of ``names.PATH_…``.
            message: any dataclass of ``rover_kf.api``.
            reply: what the answer is.
            timeout: seconds for one attempt.
            patience: seconds during which a sidecar that is away is asked again (it restarts).

        Raises:
            SidecarUnavailable: it did not answer.
            RoverError: of the class that the sidecar answered with.
            MessageError: the answer cannot be read.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                status, body = self._post(path, codec.dumps(message), timeout)
                break
            except (OSError, http.client.HTTPException) as cause:
                if time.monotonic() >= deadline:
                    raise errors.SidecarUnavailable(
                        f"the sidecar at {self._socket} does not answer to {path}: {cause!r}; see "
                        f"the log of container {names.SIDECAR_CONTAINER}"
                    ) from cause
                time.sleep(_PAUSE_SECONDS)
        if status != _OK:
            raise _error(status, body)
        return codec.loads(reply, body)

    def _post(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        connection = _UnixConnection(self._socket, timeout)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _error(status: int, body: bytes) -> errors.RoverError:
    try:
        parsed = json.loads(body)
        name, message = str(parsed["error"]), str(parsed["message"])
    except (ValueError, KeyError, TypeError):
        return errors.SidecarUnavailable(f"the sidecar answered {status}: {body[:500]!r}")
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.RoverError)):
        return errors.SidecarUnavailable(f"the sidecar answered {status} {name}: {message}")
    # Some classes build their message from facts that are already in this one.
    found = kind.__new__(kind)
    Exception.__init__(found, message)
    return found
