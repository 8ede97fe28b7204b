# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Addresses of pods whose names are gone.

A pod that ends is taken out of its Service at once, and a deleted job's Services go before its pods
do; but ending pods have still to agree on a last step and to make it durable.
"""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult


class LastKnown(AbstractResolver):
    """Asks another resolver, and answers what that one said last where it no longer knows a name.

    Args:
        asked: the other resolver.
    """

    def __init__(self, asked: AbstractResolver) -> None:
        self._asked = asked
        self._found: dict[tuple[str, int, int], list[ResolveResult]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of a host.

        Raises:
            OSError: it is not known now and never was.
        """
        key = (host, port, family)
        try:
            self._found[key] = await self._asked.resolve(host, port, family)
        except OSError:
            if key not in self._found:
                raise
        return self._found[key]

    async def close(self) -> None:
        """Close the other resolver."""
        await self._asked.close()
