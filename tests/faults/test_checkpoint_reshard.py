# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""FSDP2, tensor parallel and DDP go on in worlds of other sizes, from memory and from storage."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import checkpoint_pod
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "sharded_training.py"


def _run(
    some: list[checkpoint_pod.Pod], way: str, round_: int, size: int, result: pathlib.Path
) -> dict:
    """Two more steps by the first ``size`` pods, one rank each; what rank 0 told."""
    port = str(checkpoint_pod.free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, way, str(2 * round_), result],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **some[rank].environment(rank=rank, world_size=size, round_=round_),
            },
        )
        for rank in range(size)
    ]
    assert [rank.wait(280) for rank in ranks] == [0] * size
    return json.loads(result.read_text())


@pytest.mark.parametrize(
    ("way", "kept", "sizes"),
    [
        ("fsdp", "memory", (2, 3, 4)),
        ("tensor-parallel", "memory", (2, 4)),
        ("ddp", "memory", (2, 3, 1)),
        ("fsdp", "storage", (4, 3, 2, 4)),
        ("tensor-parallel", "storage", (4, 2, 4)),
        ("ddp", "storage", (4, 3, 2, 4)),
    ],
)
def test_training_goes_on_at_another_size(tmp_path, way, kept, sizes):
    """Worlds take over from each other: each starts from the very tensors that the one before
    ended with, moments included. In memory a pod that has left takes its pieces with it."""
    storage = tmp_path / "pvc" if kept == "storage" else None
    digest, step = None, 0
    for round_, size in enumerate(sizes, 1):
        # Memory outlives a round, or is lost with all pods.
        folder = tmp_path / ("pods" if kept == "memory" else f"pods-{round_}")
        with checkpoint_pod.pods(folder, 4, storage=storage, persist_seconds=0.0) as some:
            told = _run(some, way, round_, size, tmp_path / "result.json")
        assert (told["resumed"], told["restored"]) == (step, digest)
        assert told["restored_from"] == ("none" if round_ == 1 else told["restored_from"])
        if round_ > 1:
            assert (told["restored_from"] == "storage") == (kept == "storage")
        step, digest = told["step"], told["ended"]
    print(f"{way}, {kept}: worlds of {sizes} ended at step {step}")
    assert step == 2 * len(sizes)
