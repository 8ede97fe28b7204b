# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to other pods, and addresses for them.

A node without power closes nothing, so the kernel probes idle connections and ends silent ones. A
shorter outage costs no connection.

A name server keeps even "no such name" for about half a minute, for everybody. A pod has a name
only once its containers have started, and loses it at once when it ends or its job is deleted. So
names are looked up late, and last answers are kept: ending pods still have to agree on a last step.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import Collection
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

FALLBACK_SECONDS = 1.0
"""How long the name server is waited for where an address was told."""


class AddressCache(AbstractResolver):
    """A resolver that keeps another one's last answers for names that are gone."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver
        self._answers: dict[tuple[str, int, int], list[ResolveResult]] = {}
        self._preferred: dict[str, str] = {}
        self._enabled = asyncio.Event()
        self._enabled.set()

    def pause(self, seconds: float) -> None:
        """Look nothing up for some seconds, unless ``resume`` is called; requests wait."""
        self._enabled.clear()
        asyncio.get_running_loop().call_later(seconds, self.resume)

    def resume(self) -> None:
        """From now on names may be asked for."""
        self._enabled.set()

    def prefer(self, host: str, address: str) -> frozenset[str]:
        """Try this address first for a name: its owner says so itself.

        Returns:
            Others that the name led to so far.
        """
        answers = (found for key, found in self._answers.items() if key[0] == host)
        former = {one["host"] for found in answers for one in found}
        if host in self._preferred:
            former.add(self._preferred[host])
        self._preferred[host] = address
        self.resume()
        return frozenset(former - {address})

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of a host.

        Raises:
            OSError: it is not known now and never was.
        """
        await self._enabled.wait()
        told = self._preferred.get(host)
        if told is None:
            return await self._look_up(host, port, family)
        first = _result(host, told, port)
        try:
            others = await asyncio.wait_for(self._look_up(host, port, family), FALLBACK_SECONDS)
        except (OSError, asyncio.TimeoutError):
            return [first]
        return [first, *(other for other in others if other["host"] != told)]

    async def _look_up(
        self, host: str, port: int, family: socket.AddressFamily
    ) -> list[ResolveResult]:
        key = (host, port, family)
        try:
            self._answers[key] = await self._resolver.resolve(host, port, family)
        except OSError:
            if key not in self._answers:
                raise
        return self._answers[key]

    async def close(self) -> None:
        """Close the other resolver."""
        await self._resolver.close()


def _result(host: str, address: str, port: int) -> ResolveResult:
    return {
        "hostname": host,
        "host": address,
        "port": port,
        "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    }


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
