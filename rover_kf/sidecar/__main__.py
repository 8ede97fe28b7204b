# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar``: the sidecar's process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys

from rover_kf import errors
from rover_kf.api import logging_format, names
from rover_kf.checkpoint.storage import credentials
from rover_kf.sidecar import settings
from rover_kf.sidecar.daemon import Daemon

# A header of tens of thousands of tensors takes tens of megabytes of text. glibc takes blocks of up
# to 32 MiB from a thread's heap once it has seen one freed (mallopt(3), M_MMAP_THRESHOLD), where
# they stay a part of the process: after a few checkpoints twice of what was ever needed at a time.
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h; once it is set glibc leaves it."""


_LARGE_BYTES = 1 << 20


def tune_malloc() -> None:
    """For the whole process; another C library does as it likes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


_GC_THRESHOLDS = 10_000, 5, 5
"""Objects made since a look for cycles among the youngest, and looks until the next older ones are
looked at, too. With Python's 700, 10, 10 half of a coordinator's time went into that when ten
thousand launchers joined at once."""


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    try:
        credentials.drop_shadowed_variables(os.environ)
        told = settings.read(os.environ)
        form = os.environ.get(names.ENV_LOG_FORMAT, "")
        logging_format.configure(form, job=told.job, namespace=told.namespace, pod=told.pod)
        daemon = Daemon(told)
    except errors.InputError as error:
        sys.stderr.write(f"rover-sidecar: {error}\n")
        return error.exit_code
    tune_malloc()
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*_GC_THRESHOLDS)
    asyncio.run(daemon.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
