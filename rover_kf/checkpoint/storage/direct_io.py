# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A file that is written past the page cache, where the file system lets one.

Through the cache every byte is copied once more, by a core that training may need, and counts as
the sidecar's memory until it is on the storage. Direct writes want whole blocks at block offsets,
from aligned memory: pieces that are so go as they are, others by a buffer.
"""

from __future__ import annotations

import errno
import mmap
import pathlib

from rover_kf.checkpoint.format.chunks import CHUNK_BYTES
from rover_kf.checkpoint.storage.syscalls import Syscalls

BLOCK_BYTES = 4096
"""Whole ones suit every device whose blocks are no larger."""


class DirectFile:
    """One file, written from its begin to its end.

    Args:
        files: how the file system is changed.
        path: where there is none yet.
    """

    def __init__(self, files: Syscalls, path: pathlib.Path) -> None:
        self._files = files
        self._descriptor = files.create(path, direct=True)
        self._direct = files.is_direct(self._descriptor)
        self._buffer: mmap.mmap | None = None
        """Made when pieces come that are not aligned; all go through it from then on."""
        self._filled = 0

    def put(self, piece: memoryview) -> None:
        """Write the piece behind those before; its last bytes may wait for what comes next."""
        if self._direct and self._buffer is None:
            piece = piece[self._write_blocks(piece) :]
        if self._direct or self._buffer is not None:
            self._buffer_bytes(piece)
        else:
            self._write(piece)

    def finish(self) -> None:
        """Write the last bytes and wait until all are on the storage."""
        if self._filled:
            whole = self._filled // BLOCK_BYTES * BLOCK_BYTES
            self._write_buffer(0, whole)
            self._disable_direct()
            self._write_buffer(whole, self._filled)
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        self._files.close(self._descriptor)

    def _write_blocks(self, piece: memoryview) -> int:
        """Write whole blocks from where they are; how many bytes, none if they are not aligned."""
        whole = len(piece) // BLOCK_BYTES * BLOCK_BYTES
        done = 0
        try:
            while done < whole:
                done += self._files.write(self._descriptor, piece[done:whole])
        except OSError as refused:
            if refused.errno != errno.EINVAL:
                raise
        return done

    def _buffer_bytes(self, piece: memoryview) -> None:
        if self._buffer is None and piece:
            self._buffer = mmap.mmap(-1, CHUNK_BYTES)
        while piece and self._buffer is not None:
            taken = piece[: CHUNK_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            piece = piece[len(taken) :]
            if self._filled == CHUNK_BYTES:
                self._write_buffer(0, CHUNK_BYTES)
                self._filled = 0

    def _write_buffer(self, begin: int, end: int) -> None:
        assert self._buffer is not None  # noqa: S101 - something was put aside
        with memoryview(self._buffer) as view:
            self._write(view[begin:end])

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._files.write(self._descriptor, data) :]
            except OSError as refused:  # noqa: PERF203 - once a file
                if refused.errno != errno.EINVAL or not self._direct:
                    raise
                self._disable_direct()  # a device of larger blocks

    def _disable_direct(self) -> None:
        self._files.make_buffered(self._descriptor)
        self._direct = False
