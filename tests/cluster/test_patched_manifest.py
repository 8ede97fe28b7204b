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

from rover_kf.api import names

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


def _lost(sent: object, stored: object, path: str = "job") -> list[str]:
    """Paths of what was sent and is not stored as it was; what the server adds does not count."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        missing = [f"{path}.{key}: missing" for key in sent if key not in stored]
        common = [key for key in sent if key in stored]
        return missing + [
            line for key in common for line in _lost(sent[key], stored[key], f"{path}.{key}")
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        pairs = zip(sent, stored, strict=True)
        return [line for i, (a, b) in enumerate(pairs) for line in _lost(a, b, f"{path}[{i}]")]
    return [] if sent == stored else [f"{path}: {sent!r} is stored as {stored!r}"]


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_operator_accepts_what_patch_writes(cluster, namespace, sample):
    """Server-side dry-run: schema, operator's webhook and pruning leave every field as written."""
    (job,) = _jobs(_patch(jobs.SAMPLES / sample))
    job["metadata"]["namespace"] = namespace
    # Unlabelled, our own webhook stays out of it: what counts is what `patch` wrote.
    del job["metadata"]["labels"][names.INJECT_LABEL]
    words = ("apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-")
    stored = json.loads(cluster.kubectl(*words, text=json.dumps(job)))
    assert _lost(job["spec"], stored["spec"]) == []
    assert stored["metadata"]["annotations"].items() >= job["metadata"]["annotations"].items()


def test_pruning_would_be_noticed():
    """The comparison finds a field that the server dropped or changed."""
    assert _lost({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 2}], "d": 0}) == [
        "job.a[0].c: missing",
        "job.a[0].b: 1 is stored as 2",
    ]
