# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A tenant's pod answers the controller with whatever it likes: the cost is bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster import sidecar_request

KEY = JobKey("team-a", "evil")
POD = Pod("evil-worker-0", "1", "worker", 0, "Running", "127.0.0.1")
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Server:
    """A server of one answer; counts the bytes that it could send."""

    def __init__(self, answer: Callable[[Server, socket.socket], None]) -> None:
        self._answer = answer
        self.sent = 0
        self.stop = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve)

    def send(self, connection: socket.socket, data: bytes) -> None:
        connection.sendall(data)
        self.sent += len(data)

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        # A reader that has enough ends the connection.
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            self._answer(self, connection)


@pytest.fixture
def serving(monkeypatch) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def serve(answer: Callable[[Server, socket.socket], None]) -> Server:
            server = Server(answer)
            monkeypatch.setattr(names, "PORT", server.listener.getsockname()[1])
            stack.callback(server.listener.close)
            stack.callback(server.thread.join)
            stack.callback(server.stop.set)
            server.thread.start()
            return server

        yield serve


def endless(server: Server, connection: socket.socket) -> None:
    server.send(connection, HEAD + b"\r\n")
    while not server.stop.is_set():
        server.send(connection, b" " * 65536)


def endless_in_chunks(server: Server, connection: socket.socket) -> None:
    server.send(connection, CHUNKED)
    while not server.stop.is_set():
        server.send(connection, b"10000\r\n" + b" " * 65536 + b"\r\n")


def announced(server: Server, connection: socket.socket) -> None:
    server.send(connection, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    while not server.stop.is_set():
        server.send(connection, b" " * 65536)


@pytest.mark.parametrize("answer", [endless, endless_in_chunks, announced])
def test_an_endless_answer_ends_at_the_bound(serving, answer):
    """bcea6b1 read until the controller was killed for memory."""
    server = serving(answer)
    with pytest.raises(errors.ClusterUnavailable, match="more than 2097152 bytes"):
        sidecar_request.send(KEY, POD, "GET", names.PATH_STATUS, None, token=None)
    server.thread.join(30)
    assert not server.thread.is_alive(), "the controller has closed the connection"
    # What the reader takes, and what sockets hold on both sides.
    assert server.sent < sidecar_request.MAX_ANSWER_BYTES + (32 << 20)


def slow_status(server: Server, connection: socket.socket) -> None:
    trickle(server, connection, b"HTTP/1.1 200 ")


def slow_headers(server: Server, connection: socket.socket) -> None:
    trickle(server, connection, HEAD + b"X: ")


def slow_body(server: Server, connection: socket.socket) -> None:
    trickle(server, connection, HEAD + b"Content-Length: 100000\r\n\r\n")


def slow_chunk(server: Server, connection: socket.socket) -> None:
    trickle(server, connection, CHUNKED + b"1")


def trickle(server: Server, connection: socket.socket, head: bytes) -> None:
    server.send(connection, head)
    while not server.stop.wait(0.1):
        server.send(connection, b" ")


@pytest.mark.parametrize("answer", [slow_status, slow_headers, slow_body, slow_chunk])
def test_a_slow_answer_ends_at_the_deadline(serving, monkeypatch, answer):
    """Bytes that come one by one: bcea6b1's timeout began again with each of them."""
    monkeypatch.setattr(sidecar_request, "ANSWER_SECONDS", 1.0)
    serving(answer)
    begun = time.monotonic()
    with pytest.raises(errors.ClusterUnavailable, match="does not answer"):
        sidecar_request.send(KEY, POD, "GET", names.PATH_STATUS, None, token=None)
    assert time.monotonic() - begun < 30.0, "a hundred times fewer bytes than without a deadline"


def test_an_answer_within_the_bounds_is_read_whole(serving):
    """Its last byte, too."""
    body = b"x" * sidecar_request.MAX_ANSWER_BYTES

    def answer(server: Server, connection: socket.socket) -> None:
        server.send(connection, HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    serving(answer)
    assert sidecar_request.send(KEY, POD, "GET", names.PATH_STATUS, None, token=None) == body
