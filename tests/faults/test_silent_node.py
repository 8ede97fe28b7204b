# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node without power closes no connection: who waits for it has to find out."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from rover_kf.sidecar.http.connections import SILENCE_SECONDS

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "faults" / "powered_off_node.py"


def test_a_request_to_a_node_without_power_ends(tmp_path):
    """A long poll has no limit of its own, yet ends soon after nothing comes back any more."""
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if shutil.which("ip") is None or subprocess.run([*alone, "true"], check=False).returncode:
        assert not os.environ.get("CI"), "a network of its own is needed: unshare and ip"
        pytest.skip("no network of its own can be made here: it takes unshare and ip")
    command = [*alone, sys.executable, SCRIPT, tmp_path]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, _, told = done.stdout.partition(" ")
    assert "the coordinator at http://127.0.0.1:" in told
    assert SILENCE_SECONDS - 2 <= float(seconds) <= SILENCE_SECONDS + 5
    print(f"the request ended {seconds} s after its node")
