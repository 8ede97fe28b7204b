# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TCP relay whose target a test changes: a name that leads to another pod from now on."""

from __future__ import annotations

import contextlib
import socket
import threading


class SwitchingRelay:
    """A context; listens until it is left.

    Args:
        front: host and port where it listens.
        back: host and port of whom it leads to at first.
    """

    def __init__(self, front: tuple[str, int], back: tuple[str, int]) -> None:
        self._back = back
        self._listener = socket.create_server(front)
        self._open: set[socket.socket] = set()
        self.passed = bytearray()
        """What went through it, both ways."""

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.switch(self._back)

    def switch(self, back: tuple[str, int]) -> None:
        """Lead somewhere else; whatever is open is cut."""
        self._back = back
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._back)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(64 << 10):
                self.passed += block
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
