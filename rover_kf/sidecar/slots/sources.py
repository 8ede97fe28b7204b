# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a snapshot's bytes are read from: a slot here, a stored file, a peer (peer_source.py).

Whoever reads all blocks of a source has bytes of the promised length and checksum, or an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import mmap
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Protocol

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Pin
from rover_kf.checkpoint.format import checksum, chunks, snapshot
from rover_kf.checkpoint.format.manifest import CheckpointFolder, RankFile
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.resharding.copy_runs import CopyRun, scatter
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.tasks import run_shielded


class SnapshotSource(Protocol):
    """One whole snapshot."""

    @property
    def length(self) -> int:
        """Bytes."""

    @property
    def checksum(self) -> int:
        """CRC-32C that was promised."""

    async def head(self) -> Snapshot:
        """What it says it holds.

        Raises:
            CorruptSnapshot: it cannot be read.
            ClusterUnavailable: the peer cannot be reached.
            StorageError: the storage cannot be read.
        """

    def blocks(self) -> AsyncGenerator[memoryview, None]:
        """Its bytes in order; each block is valid until the next is asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotSource:
    """A pinned slot of this pod, whose bytes were verified when it was offered."""

    pin: Pin
    checksum: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.pin.seal.length

    async def head(self) -> Snapshot:
        """See Source."""
        return await run_shielded(functools.partial(read_header, self.pin.descriptor, self.length))

    async def blocks(self) -> AsyncGenerator[memoryview, None]:
        """See Source."""
        async for block in _iterate_in_thread(chunks.read(self.pin.descriptor, 0, self.length)):
            yield block


@dataclasses.dataclass(frozen=True, slots=True)
class FileSource:
    """A rank's file on storage."""

    storage: StoredCheckpoints
    folder: CheckpointFolder
    file: RankFile
    on_read: Callable[[int], None] = lambda _: None
    """Takes the number of bytes, block by block."""

    def __str__(self) -> str:
        return f"{self.folder.location}/{self.file.name}"

    @property
    def length(self) -> int:
        """Bytes."""
        return self.file.length

    @property
    def checksum(self) -> int:
        """See Source."""
        return self.file.checksum

    async def head(self) -> Snapshot:
        """See Source."""
        try:
            return await asyncio.to_thread(
                verification.read_header, self.storage, self.folder, self.file
            )
        except errors.CorruptSnapshot as damage:
            raise errors.CorruptSnapshot(f"{self}: {damage}") from damage

    async def blocks(self) -> AsyncGenerator[memoryview, None]:
        """See Source."""
        read = self.storage.read_range(self.folder, self.file, 0, self.length)
        async for block in _iterate_in_thread(read):
            self.on_read(len(block))
            yield block


def read_header(descriptor: int, file_bytes: int) -> Snapshot:
    """The header of a snapshot in an open file.

    Raises:
        CorruptSnapshot: it is none.
    """
    return snapshot.read(read_header_bytes(descriptor, file_bytes), file_bytes)


def read_header_bytes(descriptor: int, file_bytes: int) -> bytes:
    """The header's bytes, its length's own eight included.

    Raises:
        CorruptSnapshot: there is none.
    """
    first = chunks.join(chunks.read(descriptor, 0, snapshot.LENGTH_BYTES))
    size = snapshot.header_size(first, file_bytes)
    return chunks.join(chunks.read(descriptor, 0, size))


async def read_verified(source: SnapshotSource) -> AsyncGenerator[memoryview, None]:
    """All blocks of a source, and then the certainty that they are what was promised.

    Raises:
        CorruptSnapshot: they are not.
    """
    offset, found = 0, 0
    async with contextlib.aclosing(source.blocks()) as blocks:
        async for block in blocks:
            if offset + len(block) > source.length:
                raise errors.CorruptSnapshot(f"{source} has more than {source.length} bytes")
            found = await asyncio.to_thread(checksum.extend, found, block)
            offset += len(block)
            yield block
    if (offset, found) != (source.length, source.checksum):
        raise errors.CorruptSnapshot(
            f"{source} has CRC-32C {found:08x} in {offset} bytes; {source.checksum:08x} in "
            f"{source.length} were promised"
        )


async def copy_verified(
    source: SnapshotSource, copies: Sequence[CopyRun], target: memoryview
) -> None:
    """Copy parts of a source, all of which is read and verified.

    Raises:
        CorruptSnapshot: it is not what was promised; the target is then worth nothing.
    """
    at = 0
    async with contextlib.aclosing(read_verified(source)) as blocks:
        async for block in blocks:
            await asyncio.to_thread(scatter, block, at, copies, target)
            at += len(block)


async def verify(source: SnapshotSource) -> None:
    """Read all of a source.

    Raises:
        CorruptSnapshot: it is not what was promised.
    """
    async with contextlib.aclosing(read_verified(source)) as blocks:
        async for _ in blocks:
            pass


async def copy_into(source: SnapshotSource, descriptor: int) -> None:
    """Copy a whole source to the begin of an open file that is large enough.

    Raises:
        CorruptSnapshot: it is not what was promised.
    """
    with mmap.mmap(descriptor, source.length) as mapping, memoryview(mapping) as target:
        await copy_verified(source, (CopyRun.whole(source.length),), target)


async def _iterate_in_thread(blocks: Iterator[memoryview]) -> AsyncGenerator[memoryview, None]:
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block
