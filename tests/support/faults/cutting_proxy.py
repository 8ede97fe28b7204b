# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that ends connections after as many bytes of the answer as a test says."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
from collections.abc import Sequence

from tests.support.waiting import eventually

_BLOCK = 64 << 10


class CuttingProxy:
    """A context; listens until it is left.

    Args:
        front: host and port where it listens; port 0 is any.
        back: host and port of whom it stands before; may be away for a while.
        cuts: bytes of the answer after which the first connections are ended, in order; further
            ones are not.
        holds: after each cut nothing passes until the test says so.
        resets: end them by a reset. What the client has received but not yet read is lost then,
            megabytes where it is slow; otherwise it reads all that was sent.
    """

    def __init__(
        self,
        front: tuple[str, int],
        back: tuple[str, int],
        cuts: Sequence[int] = (),
        *,
        holds: bool = False,
        resets: bool = False,
    ) -> None:
        self._back, self._cuts, self._holds, self._resets = back, list(cuts), holds, resets
        self._listener = socket.create_server(front)
        self._ended = threading.Event()
        self.passes = threading.Event()
        """Cleared, it takes new connections but passes nothing on."""
        self.passes.set()
        self.asked: list[int] = []
        """First byte that each request asked for."""
        self.answered: list[int] = []
        """Bytes that went to the client on each connection."""

    @property
    def address(self) -> str:
        """``host:port`` where it listens."""
        return "{}:{}".format(*self._listener.getsockname())

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Listen no more."""
        if not self._ended.is_set():
            self._ended.set()
            self.passes.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            # What waits here when the connection is cut is lost; a path has little room for that.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLOCK)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.passes.wait()
        server = eventually(self._reach, within=60, what="the server is up")
        number = len(self.answered)
        self.answered.append(0)
        cut = self._cuts.pop(0) if self._cuts else None
        with client, server, contextlib.suppress(ConnectionError):
            while True:
                readable, _, _ = select.select([client, server], [], [])
                source, target = (server, client) if server in readable else (client, server)
                left = _BLOCK if cut is None else cut - self.answered[number]
                block = source.recv(min(_BLOCK, left) if source is server else _BLOCK)
                if not block:
                    return
                target.sendall(block)
                if source is client:
                    begin = re.search(rb"\r\nRange: bytes=(\d+)-\r\n", block)
                    self.asked.append(int(begin[1]) if begin else 0)
                    continue
                self.answered[number] += len(block)
                if self.answered[number] == cut:
                    if self._holds:
                        self.passes.clear()
                    if self._resets:
                        at_once = struct.pack("ii", 1, 0)
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                    return

    def _reach(self) -> socket.socket | None:
        if self._ended.is_set():
            raise ConnectionAbortedError("the proxy was left")
        with contextlib.suppress(ConnectionError):
            return socket.create_connection(self._back)
        return None
