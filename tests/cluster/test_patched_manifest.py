# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What `rover-kf patch` writes is what the real API server and Training Operator accept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from testcluster import jobs

SAMPLES = ["digits.yaml", "char-gpt.yaml"]


def _patch(path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rover_kf.cli", "patch", str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def _jobs(text: str) -> list[dict]:
    return [item for item in yaml.safe_load_all(text) if item and item["kind"] == "PyTorchJob"]


@pytest.mark.parametrize("sample", SAMPLES)
def test_patching_its_own_output_changes_nothing(tmp_path, sample):
    """`rover-kf patch` of a patched file gives the same bytes."""
    once = _patch(jobs.SAMPLES / sample)
    path = tmp_path / "once.yaml"
    path.write_text(once)
    assert _patch(path) == once


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_operator_accepts_what_patch_writes(cluster, namespace, sample):
    """Server-side dry-run: schema, admission and pruning leave every field as it was written."""
    (job,) = _jobs(_patch(jobs.SAMPLES / sample))
    job["metadata"]["namespace"] = namespace
    words = ("apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-")
    answered = json.loads(cluster.kubectl(*words, text=json.dumps(job)))
    assert answered["spec"] == job["spec"]
    assert answered["metadata"]["annotations"].items() >= job["metadata"]["annotations"].items()
