# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The checkpoint benchmark measures real systems, writes its file and names who cannot run."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

ROOT = pathlib.Path(__file__).parents[3]
KEYS = {
    "first_ms",
    "warm_ms",
    "warm_p95_ms",
    "durable_ms",
    "restore_ms",
    "step_inflation",
    "peak_memory_mib",
}


def test_a_small_run_has_every_figure(tmp_path):
    """Two sizes, both ways of ours, a peer that is always there and one that does not exist."""
    out = tmp_path / "checkpoint.json"
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "benchmarks" / "checkpoint.py",
            *("--sizes", "8,16", "--tensors", "16", "--passes", "1", "--warm", "2"),
            *(
                "--repeats",
                "1",
                "--restores",
                "1",
                "--systems",
                "torch.save,nobody,rover,rover-overlap",
            ),
            *("--out", out),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["state_mib"] == 16
    assert set(report["sizes"]) == {"8", "16"}
    for part in (report, *report["sizes"].values()):
        assert min(part[f"floor_{name}_ms"] for name in ("copy", "prefault", "persist")) > 0
        assert set(part["systems"]["nobody"]) == {"skipped"}
        for name in ("torch.save", "rover", "rover-overlap"):
            assert set(part["systems"][name]) >= KEYS, part["systems"][name]
        for name in ("rover", "rover-overlap"):
            saves = part["systems"][name]["saves"]
            assert saves["issued"] == saves["sealed"] + saves["raised"] > saves["replaced"] > 0
    assert done.stdout.count("| rover-overlap |") == 2
    assert not list(tmp_path.glob("checkpoint-files"))


def test_a_small_run_of_a_pod_of_two_ranks(tmp_path):
    """Both ranks save and restore; the state that comes back is the one that was saved."""
    out = tmp_path / "pods.json"
    size = ("--mebibytes", "8", "--tensors", "16", "--saves", "2", "--passes", "1")
    line = [sys.executable, ROOT / "benchmarks" / "checkpoint_pods.py", *size, "--out", out]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert min(report.values()) > 0
    assert report["slots_mib"] >= 2 * 2 * 8
    assert done.stdout.count(f"\n| {report['floor_copy_ms']} |") == 1
