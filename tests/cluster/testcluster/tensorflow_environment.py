# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An environment with TensorFlow, and neither torch nor rover-kf; made once a machine."""

from __future__ import annotations

import fcntl
import pathlib
import shutil
import subprocess
import sys

from testcluster import settings

LISTED = settings.REPOSITORY / "tests" / "compat" / "packages" / "tensorflow.txt"


def folder() -> pathlib.Path:
    """Where it is; installs it from the package index if it is not there (minutes, 1.8 GB)."""
    place = settings.cache() / "tensorflow-2.21.0"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            _install(place)
    return place


def _install(place: pathlib.Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    options = ["-q", "--no-cache-dir", "--no-deps", "-r", LISTED]
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", *options], check=True)
    (place / "ready").touch()
