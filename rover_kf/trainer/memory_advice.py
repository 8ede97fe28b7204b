# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""madvise(2) of memory that is a tensor's; Python has it for its own mappings alone."""

from __future__ import annotations

import ctypes
import functools

DONT_NEED = 4
"""MADV_DONTNEED."""

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE; Linux 5.14."""


def advise(address: int, size: int, advice: int) -> int:
    """Give the kernel advice, without the interpreter's lock; 0, or errno.

    Args:
        address: a page's.
        size: bytes.
        advice: one of this module's.
    """
    libc = _libc()
    done = libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice))
    return ctypes.get_errno() if done else 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
