# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer is killed and goes on: bit by bit what it would have been."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import checkpoint_pod
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "huggingface_training.py"


def _run(folder: pathlib.Path, world: list[dict], **options: object) -> dict:
    folder.mkdir(exist_ok=True)
    local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
    ranks = [{**environment, **local} for environment in world]
    return {"folder": str(folder), "ranks": ranks, "plain": False, "kill_at": 0, **options}


def test_a_killed_training_ends_as_one_that_was_not(tmp_path):
    """Parameters, moments, learning rates, random numbers, losses and evaluations are those of
    transformers' own Trainer without any kill: alone and in a world of two; killed in the first
    epoch after a step with an evaluation, and between the epochs. What two have begun, one ends; a
    second training of its begins anew. A step that was evaluated is saved with what was measured,
    due or not. What Trainer's state is not all of is refused."""
    with (
        checkpoint_pod.pods(tmp_path / "one", 1, checkpoint_every=1) as one,
        checkpoint_pod.pods(tmp_path / "two", 2, checkpoint_every=1) as two,
        checkpoint_pod.pods(tmp_path / "less", 2, checkpoint_every=100) as less,
    ):
        runs = []
        for pods, epoch in ((one, 8), (two, 4)):
            size = len(pods)
            folder = tmp_path / f"of-{size}"
            folder.mkdir()
            for round_, kill_at in ((1, 3), (2, epoch + 1), (3, 0)):
                world = [
                    pod.environment(rank=rank, world_size=size, round_=round_)
                    for rank, pod in enumerate(pods)
                ]
                runs.append(_run(folder / f"round-{round_}", world, kill_at=kill_at))
            runs.append(_run(folder / "plain", world, plain=True))
        worlds = [
            [pod.environment(rank=rank, world_size=size, round_=3 - size) for rank, pod in pods]
            for size, pods in ((2, list(enumerate(less))), (1, list(enumerate(less[:1]))))
        ]
        runs.append(_run(tmp_path / "by-two", worlds[0], kill_at=3))
        runs.append(_run(tmp_path / "by-one", worlds[1], twice=True))
        runs.append(_run(tmp_path / "refused", worlds[1], refused=True))
        subprocess.run(
            [sys.executable, SCRIPT, json.dumps(runs)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=240,
        )
        step, measured = less[0].measured()
    for size, epoch in ((1, 8), (2, 4)):
        folder = tmp_path / f"of-{size}"
        plain, resumed = (
            json.loads((folder / name / "result.json").read_text()) for name in ("plain", "round-3")
        )
        assert resumed.pop("source") == "memory"
        del plain["source"]
        assert resumed == plain
        assert plain["steps"] == 2 * epoch == len(set(plain["losses"]))
        print(f"\na world of {size}: {plain['steps']} steps, two kills, the same bits")
    alone = json.loads((tmp_path / "by-one" / "result.json").read_text())
    assert (alone["source"], alone["steps"], len(alone["losses"])) == ("memory", 16, 16)
    assert alone["losses again"] == 16
    assert (step, measured["eval_loss"]) == (16, alone["judged"][-1])
    # Two steps of four an epoch, then nine batches of 23: the third step of eight.
    assert alone["epochs"][:3] == [1 / 4, 2 / 4, 9 / 23]
