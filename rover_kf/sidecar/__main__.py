# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar``: the sidecar's process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from rover_kf import errors
from rover_kf.sidecar import settings
from rover_kf.sidecar.daemon import Daemon


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        daemon = Daemon(settings.read(os.environ))
    except errors.InputError as error:
        sys.stderr.write(f"rover-sidecar: {error}\n")
        return error.exit_code
    asyncio.run(daemon.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
