# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar``: the sidecar's process."""

from __future__ import annotations

import asyncio
import os
import sys

from rover_kf import errors
from rover_kf.api import log_lines, names
from rover_kf.sidecar import settings
from rover_kf.sidecar.daemon import Daemon


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    try:
        told = settings.read(os.environ)
        form = os.environ.get(names.ENV_LOG_FORMAT, "")
        log_lines.configure(form, job=told.job, namespace=told.namespace, pod=told.pod)
        daemon = Daemon(told)
    except errors.InputError as error:
        sys.stderr.write(f"rover-sidecar: {error}\n")
        return error.exit_code
    asyncio.run(daemon.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
