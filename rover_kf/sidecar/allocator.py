# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The C library's allocator, so that what a sidecar has needed for a moment is given back.

A header of tens of thousands of tensors takes tens of megabytes of text. glibc takes blocks of up
to 32 MiB from a thread's heap once it has seen one freed (mallopt(3), M_MMAP_THRESHOLD), where they
stay a part of the process: after a few checkpoints twice of what was ever needed at a time.
"""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h; once it is set glibc leaves it."""
_LARGE_BYTES = 1 << 20


def give_back_large_blocks() -> None:
    """For the whole process; another C library does as it likes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
