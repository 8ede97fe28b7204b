# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C of files and parts of files; the sidecar's side only (needs the crc32c package)."""

from __future__ import annotations

import crc32c

from rover_kf.checkpoint import pieces


def extend(checksum: int, data: bytes | memoryview) -> int:
    """CRC-32C of what ``checksum`` stands for, followed by ``data``; releases the GIL."""
    return int(crc32c.crc32c(data, checksum))


def of_descriptor(descriptor: int, length: int) -> int:
    """CRC-32C of a file's first ``length`` bytes.

    Raises:
        TornSnapshot: the file is shorter.
    """
    checksum = 0
    for piece in pieces.read(descriptor, 0, length):
        checksum = extend(checksum, piece)
    return checksum
