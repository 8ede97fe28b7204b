# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP over a Unix socket: how trainers and launchers reach their pod's sidecar.

Standard library only.
"""

from __future__ import annotations

import http.client
import os
import socket


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a socket file; not open before the first request.

    Args:
        path: of the socket.
        timeout: seconds for each operation on it.
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = os.fspath(path)

    def connect(self) -> None:
        """Connect to the socket file in place of host and port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
