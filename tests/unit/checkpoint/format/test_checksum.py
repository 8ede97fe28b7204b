# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C in parts is CRC-32C of the whole."""

from __future__ import annotations

import os
import random

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.checkpoint.format import checksum, crc_combine


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_two_pieces_joined(first, second):
    """Also where one is empty."""
    joined = crc_combine.combine(crc32c.crc32c(first), crc32c.crc32c(second), len(second))
    assert joined == crc32c.crc32c(first + second)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, (16 << 20) - 1, (16 << 20) + 4097])
def test_a_slot_by_several_threads(tmp_path, threads, length):
    """As by one."""
    content = random.Random(length).randbytes(length)
    path = tmp_path / "slot"
    path.write_bytes(content + b"more")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert checksum.compute_crc(descriptor, length, threads) == crc32c.crc32c(content)
        with pytest.raises(errors.CorruptSnapshot):
            checksum.compute_crc(descriptor, length + 5, threads)
    finally:
        os.close(descriptor)


def test_beside_other_work(tmp_path):
    """Piece by piece, while each is used."""
    contents = [random.Random(size).randbytes(size) for size in (0, 1, 5000, 1 << 20)]
    with checksum.concurrent_checksum() as sum_, (tmp_path / "copy").open("wb") as copy:
        for piece in map(memoryview, contents):
            with sum_.updating(piece):
                copy.write(piece)
    assert sum_.value == crc32c.crc32c(b"".join(contents))
