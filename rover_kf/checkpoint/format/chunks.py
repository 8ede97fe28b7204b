# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A file's bytes, a bounded piece at a time: whoever takes them never holds the whole."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator

from rover_kf import errors

CHUNK_BYTES = 4 << 20


def read(descriptor: int, offset: int, length: int) -> Iterator[memoryview]:
    """A range of an open file; each piece is valid until the next is asked for.

    Args:
        descriptor: of the file.
        offset: where the range begins, bytes.
        length: of the range, bytes.

    Raises:
        CorruptSnapshot: the file ends before the range does.
    """
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(length, 1))))
    done = 0
    while done < length:
        piece = buffer[: min(len(buffer), length - done)]
        count = os.preadv(descriptor, [piece], offset + done)
        if count == 0:
            raise errors.CorruptSnapshot(
                f"a file of {offset + done} bytes where {offset + length} were expected"
            )
        yield piece[:count]
        done += count


def join(chunks: Iterable[memoryview]) -> bytes:
    """All of them, each copied before the next is asked for: they may be read into one place."""
    return b"".join(map(bytes, chunks))


def map_readonly(descriptor: int, length: int) -> memoryview:
    """The first bytes of a file in memory that never shrinks.

    Read, they would be copied first, which takes as long as to write them.

    Args:
        descriptor: of the file; may be closed before the bytes are let go of.
        length: bytes.

    Raises:
        CorruptSnapshot: the file is shorter.
    """
    found = os.fstat(descriptor).st_size
    if found < length:
        raise errors.CorruptSnapshot(f"a slot of {found} bytes where {length} were sealed")
    if not length:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ))


def split(whole: memoryview) -> Iterator[memoryview]:
    """The same bytes, a piece at a time."""
    for begin in range(0, len(whole), CHUNK_BYTES):
        yield whole[begin : begin + CHUNK_BYTES]
