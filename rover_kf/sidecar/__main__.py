# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar``: the sidecar's process."""

from __future__ import annotations

import asyncio
import gc
import os
import sys

from rover_kf import errors
from rover_kf.api import log_lines, names
from rover_kf.checkpoint import mounted_keys
from rover_kf.sidecar import allocator, settings
from rover_kf.sidecar.daemon import Daemon

_GARBAGE = 10_000, 5, 5
"""Objects made since a look for cycles among the youngest, and looks until the next older ones are
looked at, too. With Python's 700, 10, 10 half of a coordinator's time went into that when ten
thousand launchers joined at once."""


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    try:
        mounted_keys.take_over(os.environ)
        told = settings.read(os.environ)
        form = os.environ.get(names.ENV_LOG_FORMAT, "")
        log_lines.configure(form, job=told.job, namespace=told.namespace, pod=told.pod)
        daemon = Daemon(told)
    except errors.InputError as error:
        sys.stderr.write(f"rover-sidecar: {error}\n")
        return error.exit_code
    allocator.give_back_large_blocks()
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*_GARBAGE)
    asyncio.run(daemon.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
