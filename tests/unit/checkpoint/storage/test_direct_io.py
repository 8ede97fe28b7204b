# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever the pieces and whatever the file system takes, a file has their bytes in order."""

from __future__ import annotations

import errno
import mmap
import os
import pathlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_kf.checkpoint.format import chunks
from rover_kf.checkpoint.storage.direct_io import BLOCK_BYTES, DirectFile
from rover_kf.checkpoint.storage.syscalls import Syscalls

_SIZES = st.one_of(
    st.integers(0, 3 * BLOCK_BYTES),
    st.sampled_from([BLOCK_BYTES, 7 * BLOCK_BYTES, chunks.CHUNK_BYTES, chunks.CHUNK_BYTES + 1]),
)


class Unwilling(Syscalls):
    """Refuses direct writes as devices of larger blocks do, and takes few bytes at a time."""

    def __init__(self, refuses_from: int, most: int) -> None:
        self.refuses_from, self.most = refuses_from, most
        self.direct = self.buffered = 0

    def write(self, descriptor, data):
        done = os.lseek(descriptor, 0, os.SEEK_CUR)
        if self.is_direct(descriptor):
            if done >= self.refuses_from:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self.direct += 1
        else:
            self.buffered += 1
        return super().write(descriptor, data[: self.most])


def _aligned(content: bytes) -> memoryview:
    mapping = mmap.mmap(-1, max(len(content), 1))
    mapping[: len(content)] = content
    return memoryview(mapping)[: len(content)]


def _written(files: Syscalls, path: pathlib.Path, given_pieces: list[memoryview]) -> bytes:
    path.unlink(missing_ok=True)
    file = DirectFile(files, path)
    try:
        for piece in given_pieces:
            file.put(piece)
        file.finish()
    finally:
        file.close()
    return path.read_bytes()


@settings(
    deadline=None, derandomize=True, max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    sizes=st.lists(_SIZES, max_size=5),
    shift=st.sampled_from([0, 1, 512]),
    refuses_from=st.sampled_from([0, BLOCK_BYTES, 4 * BLOCK_BYTES, 1 << 40]),
    most=st.sampled_from([512, BLOCK_BYTES, 3 * BLOCK_BYTES + 512, 1 << 30]),
)
def test_any_pieces_arrive_in_order(tmp_path, sizes, shift, refuses_from, most):
    """Aligned or not, with the device refusing at any point, with short writes."""
    noise = random.Random(1)
    contents = [noise.randbytes(size) for size in sizes]
    given_pieces = [_aligned(bytes(shift) + content)[shift:] for content in contents]
    files = Unwilling(refuses_from, most)
    assert _written(files, tmp_path / "file", given_pieces) == b"".join(contents)


def test_whole_blocks_go_past_the_page_cache(tmp_path):
    """All but the last bytes; read from the slot itself."""
    files = Unwilling(1 << 40, 1 << 30)
    descriptor = files.create(tmp_path / "probe", direct=True)
    offered = files.is_direct(descriptor)
    files.close(descriptor)
    if not offered:
        pytest.skip(f"the file system of {tmp_path} has no direct writes")
    content = random.Random(2).randbytes(3 * chunks.CHUNK_BYTES + 100)
    assert _written(files, tmp_path / "file", list(chunks.split(_aligned(content)))) == content
    assert (files.direct, files.buffered) == (3, 1)


def test_other_refusals_are_not_taken_for_alignment(tmp_path):
    """A full disk stays a full disk."""

    class Full(Syscalls):
        def write(self, descriptor, data):
            del descriptor, data
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        _written(Full(), tmp_path / "file", [_aligned(bytes(BLOCK_BYTES))])
