# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Entry of rover-run inside a user's image: finds the runtime beside itself, then runs it.

Copied to the runtime folder's top by sidecar/runtime.py, next to the package rover_kf.
"""

from __future__ import annotations

import os
import pathlib
import sys

RUNTIME_DIR = str(pathlib.Path(__file__).resolve().parent)
# This folder stands first on the path already, as the script's; training processes need it too.
paths = [RUNTIME_DIR, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))

from rover_kf.launcher.__main__ import main  # noqa: E402 - the path had to be set first

if __name__ == "__main__":
    sys.exit(main())
