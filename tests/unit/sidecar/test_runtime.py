# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The runtime that enters the user's image."""

from __future__ import annotations

import os
import subprocess
import sys

from rover_kf.sidecar.runtime import install


def test_runtime_stands_alone(tmp_path):
    """The copy, made twice, runs from any folder with the standard library alone."""
    destination = tmp_path / "volume" / "runtime"
    install(destination)
    install(destination)
    assert sorted(path.name for path in destination.iterdir()) == [
        "rover-run",
        "rover_kf",
        "rover_run.py",
    ]
    assert (tmp_path / "volume/arena").stat().st_mode & 0o777 == 0o777
    found = subprocess.run(
        ["/bin/sh", destination / "rover-run", "--no-python", "x"],
        env={"PATH": os.pathsep.join(["/usr/bin", "/bin"]), "ROVER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert (found.returncode, "another program" in found.stderr) == (2, True), found.stderr
    left = sorted(path.name for path in (tmp_path / "volume").iterdir())
    assert left == ["arena", "run", "runtime"]


def test_runtime_needs_no_packages(tmp_path):
    """The launcher's modules load in a Python that sees no installed package."""
    install(tmp_path / "runtime")
    program = "import rover_kf.launcher.agent, rover_kf.launcher.worker, rover_kf.trainer"
    subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path / "runtime")},
        check=True,
        cwd=tmp_path,
    )
