# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot in another pod's memory; a pull that breaks off goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.checkpoint.format import chunks, snapshot
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.sidecar.interfaces import PeerClient, ResponseStream

_log = logging.getLogger(__name__)

ATTEMPTS = 6
"""In a row that bring next to nothing, the first one included; then the peer is given up."""
FIRST_PAUSE_SECONDS = 0.2
"""Before the second attempt; each further pause is twice as long."""
_PROGRESS_BYTES = 64 << 10
"""An attempt that brings so much was worth it: the next one is the second again."""


@dataclasses.dataclass(frozen=True, slots=True)
class PeerSource:
    """A slot of another pod, over its sidecar's port; a Source."""

    peers: PeerClient
    holding: SlotInfo
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def length(self) -> int:
        """Bytes."""
        return self.holding.snapshot_bytes

    @property
    def checksum(self) -> int:
        """CRC-32C that was promised."""
        return self.holding.checksum

    async def head(self) -> Snapshot:
        """See Source."""
        found = bytearray()
        async with contextlib.aclosing(self._get(f"/{names.SLOT_HEAD}", 0)) as blocks:
            async for block in blocks:
                found += block
        return await asyncio.to_thread(snapshot.read, bytes(found), self.length)

    async def blocks(self) -> AsyncGenerator[memoryview, None]:
        """See Source.

        A peer that gave nothing at all is not asked again: who chose it has to decide that.
        """
        at, failed = 0, 0
        while True:
            begun = at
            try:
                async with contextlib.aclosing(self._get("", at)) as blocks:
                    async for block in blocks:
                        at += len(block)
                        yield memoryview(block)
            except errors.ClusterUnavailable as broken:
                failed = 1 if at - begun >= _PROGRESS_BYTES else failed + 1
                if not at or failed == ATTEMPTS:
                    raise
                _log.info("%d of %d bytes came: %s", at, self.length, broken)
            else:
                return
            await self.sleep(FIRST_PAUSE_SECONDS * 2 ** (failed - 1))

    async def _get(self, what: str, offset: int) -> AsyncGenerator[bytes, None]:
        holding = self.holding
        path = f"{names.PATH_SLOTS}/{holding.path_segment}/{holding.state.key}{what}"
        # After a change of size both slots may hold the step, in the pieces of two worlds.
        path += f"?checksum={holding.checksum}"
        async with self.peers.get(holding.address, path, offset=offset) as stream:
            self._check(stream, offset)
            async for chunk in stream.chunks(chunks.CHUNK_BYTES):
                yield chunk

    def _check(self, stream: ResponseStream, offset: int) -> None:
        """That what comes is what was promised, from the offset on."""
        holding, status = self.holding, stream.status
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise errors.ClusterUnavailable(f"{holding.pod} answers with status {status}")
        headers = {key.lower(): value for key, value in stream.headers.items()}
        stated = headers.get(names.CHECKSUM_HEADER.lower())
        wanted, begin = http.HTTPStatus.OK, ""
        if offset:
            wanted, begin = http.HTTPStatus.PARTIAL_CONTENT, f"bytes {offset}-"
        good = status == wanted and headers.get("content-range", "").startswith(begin)
        if not good or stated != str(holding.checksum):
            raise errors.CorruptSnapshot(
                f"{holding.pod} no longer serves {holding.state} of rank {holding.rank} "
                f"(status {status}, checksum {stated})"
            )
