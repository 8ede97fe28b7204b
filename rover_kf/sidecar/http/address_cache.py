# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Addresses of pods: asked for late enough, told by who knows better, kept when names are gone.

A cluster's name server keeps what it has answered, "no such name" too, for half a minute as a rule,
and for everybody. A pod has a name only once its containers have started: who asks earlier spoils
it for all others. A pod that takes another's place has an address that the kept answer does not
name. A pod that ends is taken out of its Service at once, and a deleted job's Services go before
its pods do; but ending pods have still to agree on a last step and to make it durable.
"""

from __future__ import annotations

import asyncio
import socket

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
