# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C of files and parts of files; the sidecar's side only (needs the crc32c package)."""

from __future__ import annotations

import os

import crc32c

from rover_kf import errors

CHUNK_BYTES = 4 << 20


def extend(checksum: int, data: bytes | memoryview) -> int:
    """CRC-32C of what ``checksum`` stands for, followed by ``data``; releases the GIL."""
    return int(crc32c.crc32c(data, checksum))


def of_descriptor(descriptor: int, length: int) -> int:
    """CRC-32C of a file's first ``length`` bytes.

    Raises:
        TornSnapshot: the file is shorter.
    """
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(length, 1))))
    checksum, offset = 0, 0
    while offset < length:
        piece = buffer[: min(len(buffer), length - offset)]
        count = os.preadv(descriptor, [piece], offset)
        if count == 0:
            message = f"a file of {offset} bytes where {length} were sealed"
            raise errors.TornSnapshot(message)
        checksum = extend(checksum, piece[:count])
        offset += count
    return checksum
