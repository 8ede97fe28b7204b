# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A Source that is read at no more than a rate."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator

from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.storage.rate_limit import RateLimiter
from rover_kf.sidecar.slots.sources import SnapshotSource


@dataclasses.dataclass(frozen=True, slots=True)
class RateLimitedSource:
    """Another Source; methods as there.

    What is not taken from a connection stays on its other side once the buffers between are full.

    Args:
        source: that has the bytes.
        limiter: on them.
    """

    source: SnapshotSource
    limiter: RateLimiter

    @property
    def length(self) -> int:
        """Bytes."""
        return self.source.length

    @property
    def checksum(self) -> int:
        """CRC-32C that was promised."""
        return self.source.checksum

    async def head(self) -> Snapshot:
        """See Source; not held back."""
        return await self.source.head()

    async def blocks(self) -> AsyncGenerator[memoryview, None]:
        """See Source."""
        async with contextlib.aclosing(self.source.blocks()) as blocks:
            async for block in blocks:
                await asyncio.sleep(self.limiter.reserve(len(block)))
                yield block
