# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C of files and parts of files; the sidecar's side only (needs the crc32c package)."""

from __future__ import annotations

import mmap
import os

import crc32c

from rover_kf import errors


def extend(checksum: int, data: bytes | memoryview) -> int:
    """CRC-32C of what ``checksum`` stands for, followed by ``data``; releases the GIL."""
    return int(crc32c.crc32c(data, checksum))


def of_slot(descriptor: int, length: int) -> int:
    """CRC-32C of the first ``length`` bytes of a file in memory that never shrinks.

    Mapped, not read: to copy the bytes first would take as long again.

    Raises:
        TornSnapshot: the file is shorter.
    """
    found = os.fstat(descriptor).st_size
    if found < length:
        raise errors.TornSnapshot(f"a slot of {found} bytes where {length} were sealed")
    if not length:
        return 0
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_READ) as mapping:
        view = memoryview(mapping)
        try:
            return extend(0, view)
        finally:
            view.release()
