# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What no system can be faster than, measured beside them: a copy, fresh pages, a synced file."""

from __future__ import annotations

import mmap
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop

MADV_POPULATE_WRITE = 23
PIECE_BYTES = 4 << 20


class Floors(Peer):
    """Flat bytes, as many as the state has."""

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """A warm shared mapping and as many bytes of ordinary memory."""
        super().open(loop, folder)
        self._size = int(sys.argv[1])
        self._source = torch.ones(self._size, dtype=torch.uint8)
        self._mapping = _mapped(self._size)
        self._target = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._target.copy_(self._source)

    def save(self, step: int) -> None:
        """One copy into the warm mapping."""
        del step
        self._target.copy_(self._source)

    def durable(self, step: int) -> None:
        """The mapping into a file, synced."""
        path = self.folder / f"{step}.floor"
        view = memoryview(self._mapping)
        with path.open("wb", buffering=0) as file:
            for begin in range(0, self._size, PIECE_BYTES):
                file.write(view[begin : begin + PIECE_BYTES])
            os.fsync(file.fileno())
        path.unlink()

    def facts(self) -> dict[str, Any]:
        """Milliseconds for the pages of a mapping that has none yet."""
        with _mapped(self._size) as fresh:
            begun = time.perf_counter()
            fresh.madvise(MADV_POPULATE_WRITE)
            return {"prefault_ms": (time.perf_counter() - begun) * 1e3}


def _mapped(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)


if __name__ == "__main__":
    serve(Floors())
