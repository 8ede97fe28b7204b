# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The profile of real processes."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from rover_kf import errors
from rover_kf.recommender.profile import run_profile
from tests.support.waiting import eventually

HOLD = "import time; x = bytearray(b'1') * (100 << 20); time.sleep(600)"
CHILD = (
    "import subprocess, sys, pathlib\n"
    "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
    "pathlib.Path('child').write_text(str(child.pid))\n"
    "child.wait()\n"
)


def test_memory_is_measured(tmp_path):
    """A process that holds 100 MiB is seen with at least that, and not with much more."""
    found = run_profile([sys.executable, "-c", HOLD], os.environ, tmp_path, 3.0)
    assert not found.exited
    assert 100 << 20 <= found.peak_memory <= 180 << 20


def test_children_count_and_are_ended(tmp_path):
    """CPU of a child process is counted, and nothing of the tree is left running."""
    found = run_profile([sys.executable, "-c", CHILD], os.environ, tmp_path, 4.0)
    assert found.cpu_seconds > 0.2
    pid = int((tmp_path / "child").read_text())
    stat = pathlib.Path(f"/proc/{pid}/stat")

    def gone():
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(gone, what="the child's end")


def test_command_that_ends_is_measured_too(tmp_path):
    """A short command that succeeds is no failure."""
    assert run_profile([sys.executable, "-c", "pass"], os.environ, tmp_path, 60.0).exited


def test_command_that_fails_is_refused(tmp_path):
    """A script that cannot run is refused with its last line."""
    script = [sys.executable, "-c", "raise SystemExit('no data here')"]
    with pytest.raises(errors.InputError, match="no data here"):
        run_profile(script, os.environ, tmp_path, 60.0)
    with pytest.raises(errors.InputError, match="cannot start"):
        run_profile(["/no/such/program"], os.environ, tmp_path, 1.0)
