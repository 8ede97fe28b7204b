# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The whole path on this machine, as ``make demo`` takes it."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

DEMO = pathlib.Path(__file__).parents[2] / "manifests" / "samples" / "demo.py"
KEYS = {
    "accuracy",
    "checkpoint_interval",
    "killed_at_step",
    "resumed_step",
    "restored_from",
    "lost_steps",
    "recovery_seconds",
    "scaled_from",
    "scaled_to",
    "predicted_gain",
    "measured_gain",
    "history_rows",
    "report",
}


@pytest.mark.torch
@pytest.mark.alone
def test_the_demo_keeps_its_promises(tmp_path):
    """Train, kill, recover from memory, scale by itself, finish, record and report."""
    out = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, DEMO, "--out", out],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads(out.read_text())
    assert str(out.with_suffix(".html")) in done.stdout
    assert re.search(r"recommended \w+: [\d.]+ [GM]iB", done.stdout)
    assert set(result) == KEYS
    assert result["accuracy"] >= 0.95
    assert result["killed_at_step"] >= result["resumed_step"] > 0
    assert result["resumed_step"] % result["checkpoint_interval"] == 0
    assert result["lost_steps"] == result["killed_at_step"] - result["resumed_step"]
    assert result["lost_steps"] <= result["checkpoint_interval"]
    assert result["restored_from"] == "memory"
    assert 0 < result["recovery_seconds"] <= 5
    assert (result["scaled_from"], result["scaled_to"]) == (2, 3)
    assert result["predicted_gain"] > 1
    assert result["measured_gain"] > 0
    assert result["history_rows"] >= 1
    page = pathlib.Path(result["report"]).read_text()
    assert "<html" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "TrainingProcessFailed" in page
    leftover = subprocess.run(["pgrep", "-f", str(tmp_path)], check=False, capture_output=True)
    assert leftover.stdout == b""
