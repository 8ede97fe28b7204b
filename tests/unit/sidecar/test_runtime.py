# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The runtime that enters the user's image."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import tomllib

from rover_kf import __version__
from rover_kf.sidecar.runtime import install

ROOT = pathlib.Path(__file__).parents[3]


def test_runtime_stands_alone(tmp_path):
    """The copy, made twice, runs from any folder with the standard library alone."""
    destination = tmp_path / "volume" / "runtime"
    install(destination)
    install(destination)
    assert sorted(path.name for path in destination.iterdir()) == [
        "rover-run",
        "rover_kf",
        f"rover_kf-{__version__}.dist-info",
        "rover_run.py",
    ]
    assert (tmp_path / "volume/arena").stat().st_mode & 0o777 == 0o777
    found = subprocess.run(
        ["/bin/sh", destination / "rover-run", "--unheard-of", "x"],
        env={"PATH": os.pathsep.join(["/usr/bin", "/bin"]), "ROVER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert (found.returncode, "--unheard-of" in found.stderr) == (2, True), found.stderr
    left = sorted(path.name for path in (tmp_path / "volume").iterdir())
    assert left == ["arena", "run", "runtime"]


def test_torchrun_finds_the_rendezvous(tmp_path):
    """Python's own metadata names it, as the installed package's does."""
    install(tmp_path / "runtime")
    (known,) = importlib.metadata.distributions(path=[str(tmp_path / "runtime")])
    assert (known.name, known.version) == ("rover-kf", __version__)
    (found,) = known.entry_points.select(group="torchrun.handlers")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torchrun.handlers"] == {found.name: found.value}
    assert project["version"] == __version__


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
