# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are answered when there is something to tell."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from aiohttp import hdrs, web

from rover_kf.api import codec
from rover_kf.api.membership import JoinReply, WatchReply

COMPRESS_FROM_BYTES = 16 << 10
"""Of a compressed answer: the order of a large world goes to each member."""


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


_POLL_SECONDS = 1.0
"""How often it is looked without a change: a pace, too, may allow something new."""

T = TypeVar("T")


class LongPoll:
    """Those who wait for one thing, and who tells them.

    Without a lock: one would have to be taken again by whoever is cancelled while it waits.
    """

    def __init__(self) -> None:
        self.next_change = asyncio.Event()
        """Set at the next change; to be kept before a look that awaits, so that none is missed."""

    def notify(self) -> None:
        """There may be something to tell: everybody who waits looks."""
        self.next_change.set()
        self.next_change = asyncio.Event()

    async def wait(self, probe: Callable[[], T | None], seconds: float) -> T | None:
        """Wait up to so many seconds until ``probe`` returns something else than None.

        It is called at once, at each change, and now and then.

        Returns:
            What there is; None: nothing in time.
        """
        until = time.monotonic() + seconds
        while (found := probe()) is None and (rest := until - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.next_change.wait(), min(rest, _POLL_SECONDS))
        return found
