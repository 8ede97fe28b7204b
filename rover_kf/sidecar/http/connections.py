# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to other pods that end when the other node is gone.

A node without power closes nothing: whoever waits for an answer from it would wait for ever. The
kernel asks the other one while nothing comes, and gives up after some silence. A network that is
back within that time costs no connection. Nor does an address say that its pod is gone: whoever is
still being connected to it waits for seconds, unless somebody says where the pod is now.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Collection
from typing import Any

IDLE_SECONDS, BETWEEN_SECONDS, PROBES = 4, 2, 3
SILENCE_SECONDS = IDLE_SECONDS + BETWEEN_SECONDS * PROBES
"""After which a connection is given up, whether an answer is awaited or bytes are on their way."""


class KeepAliveConnector:
    """The connections of one client."""

    def __init__(self) -> None:
        self._addresses: weakref.WeakKeyDictionary[socket.socket, str] = weakref.WeakKeyDictionary()

    def create_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Create a socket for an item of ``socket.getaddrinfo``."""
        one = _keepalive_socket(info)
        self._addresses[one] = info[4][0]
        return one

    def abort_connecting(self, addresses: Collection[str]) -> None:
        """Wait no longer for connections that are still being made to these."""
        for one, address in list(self._addresses.items()):
            if address in addresses and not _is_connected(one):
                with contextlib.suppress(OSError):  # closed, or not even begun
                    one.shutdown(socket.SHUT_RDWR)


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _keepalive_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, BETWEEN_SECONDS),
        (socket.TCP_KEEPCNT, PROBES),
        (socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
