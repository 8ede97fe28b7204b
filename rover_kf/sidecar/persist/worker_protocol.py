# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar and its storage processes say to each other: JSON and bytes over a socket pair."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct(">IQ")
_MAX_WORDS = 64 << 20


def send(channel: socket.socket, words: dict[str, Any], blob: bytes = b"") -> None:
    """Send one frame.

    Raises:
        OSError: the other end is gone.
    """
    text = json.dumps(words, separators=(",", ":")).encode()
    channel.sendall(_HEAD.pack(len(text), len(blob)) + text + blob)


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Raises:
        EOFError: the other end is gone.
        OSError: likewise.
    """
    length, size = _HEAD.unpack(_exactly(channel, _HEAD.size))
    if length > _MAX_WORDS:
        raise EOFError
    return json.loads(_exactly(channel, length)), _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
