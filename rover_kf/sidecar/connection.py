# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to other pods that end when the other node is gone.

A node without power closes nothing: whoever waits for an answer from it would wait for ever. The
kernel asks the other one while nothing comes, and gives up after some silence. A network that is
back within that time costs no connection.
"""

from __future__ import annotations

import socket
from typing import Any

IDLE_SECONDS, BETWEEN_SECONDS, ASKED = 4, 2, 3
SILENCE_SECONDS = IDLE_SECONDS + BETWEEN_SECONDS * ASKED
"""After which a connection is given up, whether an answer is awaited or bytes are on their way."""


def made(info: tuple[Any, ...]) -> socket.socket:
    """A socket for an address, as aiohttp's connector wants it.

    Args:
        info: as of ``socket.getaddrinfo``.
    """
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, BETWEEN_SECONDS),
        (socket.TCP_KEEPCNT, ASKED),
        (socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
