# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Gives a pod's sealed slots to other sidecars: from the slot's file to the socket, by sendfile(2).

Where TLS is spoken the bytes are read and encrypted instead, which costs several times the work.

What is under way then is not a copy: on one node even bytes that the reader has acknowledged are
the slot's own pages until the reader takes them. So every answer ends its connection, the reader
closes it when it has all, and until then the slot stays pinned.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import logging
import os
import socket
import time

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import Pin
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import read_header_bytes
from rover_kf.sidecar.tasks import acquire_in_thread

_log = logging.getLogger(__name__)

_SEND_BYTES = 32 << 20
"""At most so much at once, so that other requests get their turn on a fast network."""
_READ_BYTES = 256 << 10
"""Of a slot that are encrypted at once."""
_POLL_SECONDS = 0.01
_READER_SECONDS = 60.0


class SlotServer:
    """One a sidecar.

    Args:
        slots: the pod's.
        reader_seconds: a reader that takes nothing for so long loses its connection, and so does
            one that has not read the end so long after it was sent; the slot is free then.
    """

    def __init__(self, slots: PodSlots, *, reader_seconds: float = _READER_SECONDS) -> None:
        self._slots, self._reader_seconds = slots, reader_seconds
        self._readers: dict[asyncio.Transport, tuple[str, Seal]] = {}

    def end_other_reads(self, local_rank: int, state: State) -> None:
        """End the reading of a rank's slots with any other state: a restore needs the slot."""
        for transport, (place, seal) in self._readers.items():
            if place == str(local_rank) and seal.state != state:
                with contextlib.suppress(OSError):  # it is gone already
                    transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        place = f"(?:{names.REPLICA_PLACE})?[0-9]{{1,9}}"
        slot = names.PATH_SLOTS + f"/{{place:{place}}}/{{state:{names.STATE_KEY_PATTERN}}}"
        return [
            web.get(slot, self._on_slot, allow_head=False),
            web.get(f"{slot}/{{part:{names.SLOT_HEAD}}}", self._on_slot, allow_head=False),
        ]

    async def _on_slot(self, request: web.Request) -> web.StreamResponse:
        pin, found = await self._pinned(request)
        with pin:
            headers = {names.CHECKSUM_HEADER: str(found)}
            length = pin.seal.length
            if "part" in request.match_info:
                head = await asyncio.to_thread(read_header_bytes, pin.descriptor, length)
                return web.Response(body=head, headers=headers)
            span = _span(request, length)
            if span is None:
                headers["Content-Range"] = f"bytes */{length}"
                return web.Response(status=416, headers=headers)
            headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
            response = web.StreamResponse(headers=headers)
            if "Range" in request.headers:
                response.set_status(206)
                response.headers["Content-Range"] = f"bytes {span[0]}-{span[-1]}/{length}"
            await self._send(request, response, pin, span)
            return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, pin: Pin, span: range
    ) -> None:
        response.content_length = len(span)
        response.force_close()
        transport = request.transport
        try:
            await response.prepare(request)
            if transport is None:
                raise ConnectionResetError("closed before the answer")
            self._readers[transport] = request.match_info["place"], pin.seal
            _set_send_timeout(self._reader_seconds, transport)
            if transport.get_extra_info("sslcontext") is None:
                await _send_file(pin, span, transport)
            else:
                await _send_encrypted(pin, span, response)
            await self._wait_drained(transport)
        except OSError as gone:
            _log.info("%s took less than %s: %s", request.remote, pin.seal.state, gone)
        finally:
            if transport is not None:
                self._readers.pop(transport, None)

    async def _wait_drained(self, transport: asyncio.Transport) -> None:
        """Until the reader has closed the connection, or for as long as it has time for that."""
        until = time.monotonic() + self._reader_seconds
        while True:
            if transport.is_closing() or time.monotonic() > until:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _pinned(self, request: web.Request) -> tuple[Pin, int]:
        place, key = request.match_info["place"], request.match_info["state"]
        pin = functools.partial(self._pin, place, key, request.query.get("checksum"))
        return await acquire_in_thread(pin, lambda pinned: pinned[0].close())

    def _pin(self, arena_name: str, key: str, checksum: str | None) -> tuple[Pin, int]:
        """A slot that holds the state, and its checksum: the one that is asked for, if any is."""
        arena = self._slots.arena(arena_name)
        why = f"state {key} is not in the slots of {arena_name}"
        for seal in arena.sealed():
            if seal.state.key != key:
                continue
            try:
                found = self._slots.checksum(arena_name, seal)
                if checksum in (None, str(found)):
                    return arena.pin(seal), found
                why = f"{seal.state} has CRC-32C {found}, not {checksum}"
            except errors.CorruptSnapshot as torn:
                why = str(torn)
        raise web.HTTPNotFound(text=why)


async def _send_file(pin: Pin, span: range, transport: asyncio.Transport) -> None:
    """Send a part of a slot past the process."""
    loop = asyncio.get_running_loop()
    with io.FileIO(pin.descriptor, closefd=False) as file:
        for begin in range(span.start, span.stop, _SEND_BYTES):
            if transport.is_closing():
                raise ConnectionResetError("closed before the end")
            size = min(_SEND_BYTES, span.stop - begin)
            await loop.sendfile(transport, file, begin, size)


async def _send_encrypted(pin: Pin, span: range, response: web.StreamResponse) -> None:
    """Send a part of a slot through TLS.

    The library's own way reads 16 KiB at a time, each in another thread.
    """
    for begin in range(span.start, span.stop, _READ_BYTES):
        block = os.pread(pin.descriptor, min(_READ_BYTES, span.stop - begin), begin)
        await response.write(block)


def _span(request: web.Request, length: int) -> range | None:
    """Which bytes are asked for; None if there are none of them."""
    try:
        asked = request.http_range
    except ValueError:
        return None
    span = range(*asked.indices(length))
    return span if span or asked.start is None else None


def _set_send_timeout(seconds: float, transport: asyncio.Transport) -> None:
    """Of a peer whose node is lost there is never a word: the kernel shall end the connection."""
    connection = transport.get_extra_info("socket")
    milliseconds = int(seconds * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
