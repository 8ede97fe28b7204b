# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The runtime that enters users' images, on every Python that it supports and this machine has."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from rover_kf.api import names
from rover_kf.sidecar import runtime
from tests.support import interpreters

USE_RUNTIME = pathlib.Path(__file__).parent / "scripts" / "use_runtime.py"
MINORS = ("3.10", "3.11", "3.12", "3.13")


@pytest.fixture
def installed(tmp_path) -> pathlib.Path:
    """The runtime as the init container leaves it."""
    folder = tmp_path / "rover" / "runtime"
    runtime.install(folder)
    return folder


@pytest.fixture(params=MINORS)
def python(request) -> interpreters.Interpreter:
    found = interpreters.find(request.param)
    if found is None:
        here = [minor for minor in MINORS if interpreters.find(minor)]
        pytest.skip(f"no Python {request.param} on this machine; there are {', '.join(here)}")
    return found


def test_the_runtime_works_without_any_package(python, installed, tmp_path):
    """All of it is imported but for what wants torch; a snapshot is kept; nothing warns."""
    done = subprocess.run(
        [python.path, "-I", "-S", "-W", "error", USE_RUNTIME, installed, tmp_path / "arena"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["python"] == python.version
    assert (told["step"], told["whole"]) == (7, True)
    wanting = {name: package for name, package in told["lacked"].items() if package}
    imported = told["lacked"].keys() - wanting
    print(f"Python {python.version}: {len(imported)} modules imported; wanting: {wanting}")
    assert {"rover_kf.launcher.agent", "rover_kf.trainer.sidecar_client"} <= imported
    # A training process wants torch; packages of the sidecar are wanted by its part of checkpoints.
    wanted = {(name.split(".")[1], package == "torch") for name, package in wanting.items()}
    assert wanted == {("trainer", True), ("checkpoint", False)}


def test_the_launcher_starts(python, installed, tmp_path):
    """rover-run runs on the python3 of PATH and refuses a command line without a script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {python.path} "$@"\n')
    (programs / "python3").chmod(0o755)
    done = subprocess.run(
        [installed / "rover-run", "--nnodes", "2"],
        env={"PATH": f"{programs}{os.pathsep}{os.defpath}", names.ENV_HOME: str(installed.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == names.EXIT_USAGE, done.stderr
    assert "script" in done.stderr
