# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C of files and parts of files; the sidecar's side only (needs the crc32c package)."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from rover_kf.checkpoint.format import chunks, crc_combine

_PARALLEL_BYTES = 16 << 20
"""What is smaller is done before a thread has started."""
_PARTS_PER_THREAD = 16


Crc = Callable[[bytes | memoryview, int], int]


def _load_crc32c() -> Crc:
    """The crc32c package's function, without the package around it.

    That reads its own version and loads a command line, 3 MiB in every process of a sidecar.
    """
    package = importlib.util.find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = importlib.machinery.PathFinder.find_spec("_crc32c", places)
    if spec is None or spec.loader is None or not places:
        import crc32c  # noqa: PLC0415 - laid out in another way: as everybody imports it

        return crc32c.crc32c
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Crc = module.crc32c
    return found


_crc32c = _load_crc32c()


def extend(checksum: int, data: bytes | memoryview) -> int:
    """CRC-32C of what ``checksum`` stands for, followed by ``data``; releases the GIL."""
    return _crc32c(data, checksum)


@contextlib.contextmanager
def concurrent_checksum() -> Iterator[ConcurrentChecksum]:
    """A checksum of pieces that is computed while something else is done with each."""
    with ThreadPoolExecutor(1, thread_name_prefix="rover-crc") as thread:
        yield ConcurrentChecksum(thread)


class ConcurrentChecksum:
    """See ``beside``.

    Args:
        thread: that computes.
    """

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self.value = 0
        """CRC-32C of all pieces so far."""

    @contextlib.contextmanager
    def updating(self, piece: memoryview) -> Iterator[None]:
        """Extend the checksum by the piece while the block runs."""
        found = self._thread.submit(extend, self.value, piece)
        try:
            yield
        finally:
            self.value = found.result()


def compute_crc(descriptor: int, length: int, threads: int = 1) -> int:
    """CRC-32C of the first ``length`` bytes of a file in memory that never shrinks.

    Args:
        descriptor: of the file.
        length: bytes.
        threads: that may compute; more than one where nobody trains.

    Raises:
        CorruptSnapshot: the file is shorter.
    """
    whole = chunks.map_readonly(descriptor, length)
    if threads == 1 or length < _PARALLEL_BYTES:
        return extend(0, whole)
    # More parts than threads: one that has to share its core must not keep the others waiting.
    width = max(_PARALLEL_BYTES, -(-length // (threads * _PARTS_PER_THREAD)))
    parts = [whole[begin : begin + width] for begin in range(0, length, width)]
    with ThreadPoolExecutor(threads, thread_name_prefix="rover-crc") as pool:
        found = list(pool.map(functools.partial(extend, 0), parts))
    joined = found[0]
    for part, value in zip(parts[1:], found[1:], strict=True):
        joined = crc_combine.combine(joined, value, len(part))
    return joined
