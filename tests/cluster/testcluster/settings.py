# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where things are kept; the only place of this package that reads the environment.

`ROVER_KF_CACHE` (default ~/.cache/rover-kf) holds binaries, images and the run directory.
`ROVER_KF_TEST_KUBERNETES` (default: the newest in releases.py) is the minor version to run: 1.29.
"""

from __future__ import annotations

import os
import pathlib

GO_MODULES = pathlib.Path(__file__).resolve().parent.parent / "go"
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def cache() -> pathlib.Path:
    """The cache's folder; made if it is not there."""
    named = os.environ.get("ROVER_KF_CACHE")
    path = pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "rover-kf"
    path = path.expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


def run_directory() -> pathlib.Path:
    """Where a cluster keeps its state unless it is told otherwise."""
    return cache() / "cluster"


def kubernetes() -> str:
    """The minor version of Kubernetes that is asked for; empty if none is."""
    return os.environ.get("ROVER_KF_TEST_KUBERNETES", "")


def in_ci() -> bool:
    """Whether a missing prerequisite is a failure instead of a reason to skip."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")
