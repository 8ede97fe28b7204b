# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The digits sample killed again and again ends with the very result of a run without a crash."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import checkpoint_pod
import pytest
from tests_support import eventually

from rover_kf.api import names
from rover_kf.checkpoint.arena import Arena

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60


def _start(
    pod: checkpoint_pod.Pod, result: pathlib.Path, round_: int, *options: str
) -> subprocess.Popen[bytes]:
    script = ROOT / "manifests" / "samples" / "digits.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **pod.environment(round_=round_)}
    return subprocess.Popen(
        [sys.executable, script, "--steps", str(STEPS), "--result", result, *options],
        env=environment,
    )


def _reached(arena: Arena, step: int) -> bool:
    return any(seal.step >= step for seal in arena.sealed())


def test_resume_equals_no_crash(tmp_path):
    """SIGKILL of the training process twice, and of the sidecar: bit-equal final state."""
    files: list[bytes] = []
    for name, kills in (("calm", ()), ("killed", (12, 30))):
        storage = tmp_path / f"{name}-pvc"
        changes = {"checkpoint_every": 5, "storage": storage}
        with checkpoint_pod.pods(tmp_path / name, 1, **changes) as (pod,):
            arena = Arena(pod.settings.home / "arena" / "0")
            result = tmp_path / f"{name}.json"
            for round_, step in enumerate(kills, 1):
                process = _start(pod, result, round_, "--samples-per-second", "2000")
                eventually(functools.partial(_reached, arena, step), within=240)
                process.send_signal(signal.SIGKILL)
                process.wait()
                if round_ == 2:
                    pod.kill()
                    pod.start()
            assert _start(pod, result, len(kills) + 1).wait(240) == 0
            told = json.loads(result.read_text())
            assert told["restored_from"] == ("memory" if kills else "none")
            assert len(pod.told(names.EVENT_RESTORED)) == len(kills)
            folder = storage / "demo" / f"step-{STEPS:012d}-{len(kills) + 1}"
            eventually((folder / "manifest.json").exists)
            files.append((folder / "rank-00000.safetensors").read_bytes())
    assert files[0] == files[1]


def _start_world(
    some: list[checkpoint_pod.Pod], result: pathlib.Path, round_: int, size: int, steps: int
) -> list[subprocess.Popen[bytes]]:
    """One DDP rank a pod, in the first so many pods."""
    script = ROOT / "manifests" / "samples" / "char_gpt.py"
    port = str(checkpoint_pod.free_port())
    model = ("--width", "16", "--layers", "1", "--global-batch", "12")
    return [
        subprocess.Popen(
            [sys.executable, script, "--steps", str(steps), "--result", result, *model],
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


def test_a_replicated_state_restores_at_any_world_size(tmp_path):
    """One rank, then DDP of two, going on where the last world ended; both hold the same bits."""
    changes = {"checkpoint_every": 5, "checkpoint_check_every": 1}
    with checkpoint_pod.pods(tmp_path / "pods", 2, **changes) as two:
        result = tmp_path / "result.json"
        found = []
        for round_, size in enumerate((1, 2), 1):
            ranks = _start_world(two, result, round_, size, steps=10 * round_)
            assert [rank.wait(300) for rank in ranks] == [0] * size
            told = json.loads(result.read_text())
            found.append((told["world_size"], told["resumed_step"], told["restored_from"]))
        assert found == [(1, 0, "none"), (2, 10, "memory")]
        (newcomer,) = two[1].told(names.EVENT_RESTORED)
        assert "rank 1 of 2 resumes at step 10 from peer" in newcomer
        log = two[0].settings.home / checkpoint_pod.LOG
        eventually(lambda: "step 20: 2 ranks hold the same" in log.read_text())
        assert two[0].told(names.EVENT_REPLICA_MISMATCH) == []
