# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that the coordinator keeps open, each under a ticket until the rendezvous answers it."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import itertools

from aiohttp import hdrs, web

from rover_kf.api import codec
from rover_kf.api.membership import JoinReply, WatchReply

COMPRESS_FROM_BYTES = 16 << 10
"""Bytes from which an answer is compressed: the order of a large world names all its members, and
goes to each of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedReply:
    """An encoded answer."""

    plain: bytes
    compressed: bytes = b""
    """The same by gzip, if it is long."""

    def response(self, request: web.Request) -> web.Response:
        """The answer in the form that the request takes."""
        answer = web.Response(body=self.plain, content_type="application/json")
        if self.compressed and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            answer.body = self.compressed
            answer.headers[hdrs.CONTENT_ENCODING] = "gzip"
        return answer


class PendingRequests:
    """One a coordinator."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[EncodedReply]] = {}
        self._last: tuple[object, EncodedReply] = (None, EncodedReply(b""))

    def open(self) -> tuple[int, asyncio.Future[EncodedReply]]:
        """A new ticket, and what will be the body of its answer."""
        ticket = next(self._tickets)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, future

    def close(self, ticket: int) -> None:
        """Nobody waits for that answer any more."""
        del self._waiting[ticket]

    def answer(self, ticket: int, reply: JoinReply | WatchReply) -> None:
        """Answer a request, if somebody still waits."""
        future = self._waiting.get(ticket)
        if future is not None and not future.done():
            future.set_result(self._encode(reply))

    def _encode(self, reply: JoinReply | WatchReply) -> EncodedReply:
        # One order starts every member of a round: encoded once.
        known, body = self._last
        if reply is not known:
            plain = codec.dumps(reply)
            body = EncodedReply(
                plain, gzip.compress(plain, 6) if len(plain) >= COMPRESS_FROM_BYTES else b""
            )
            self._last = (reply, body)
        return body
