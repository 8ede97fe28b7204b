# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job on the real cluster of which a process is killed each minute, beside the stock one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LEAST = 0.9


@pytest.mark.cluster
def test_most_of_the_time_goes_into_new_steps(goodput_minutes, pytestconfig):
    """Nine tenths at least, and more than the stock job has of the same minutes, on the same
    cluster at the same time; benchmarks/elastic.py measures both in the same way."""
    root = pytestconfig.rootpath
    out = root / "build" / "soak-goodput.json"
    command = ["benchmarks/elastic.py", "--actions", "goodput", "--fresh", "--abreast"]
    command += ["--out", str(out)]
    seconds = str(60 * goodput_minutes)
    subprocess.run([sys.executable, *command, "--goodput-seconds", seconds], cwd=root, check=True)
    found = json.loads(out.read_text())["goodput"]
    print(f"{goodput_minutes:g} minutes: {found}")
    assert found["rover"] >= LEAST
    assert found["rover"] > found["stock"]
