# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer is killed and goes on: bit by bit what it would have been."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rover_kf.checkpoint.arena.arena import Arena
from tests.support.pods import checkpoint_pod

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "training" / "huggingface_training.py"


def _run(folder: pathlib.Path, world: list[dict], **options: object) -> dict:
    folder.mkdir(exist_ok=True)
    local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
    ranks = [{**environment, **local} for environment in world]
    return {"folder": str(folder), "ranks": ranks, "plain": False, "kill_at": 0, **options}


def _all(runs: list[dict]) -> None:
    subprocess.run(
        [sys.executable, SCRIPT, json.dumps(runs)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=240,
    )


def _told(folder: pathlib.Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def _plan(
    folder: pathlib.Path,
    pods: list[checkpoint_pod.Pod],
    rounds: list[tuple[str, int]],
    **options: object,
) -> Iterator[dict]:
    """Rounds of one job, each with the way that its model is held and the step that it is killed
    after, and at last the same by transformers' own Trainer."""
    folder.mkdir()
    for round_, (way, kill_at) in enumerate(rounds, 1):
        world = [
            pod.environment(rank=rank, world_size=len(pods), round_=round_)
            for rank, pod in enumerate(pods)
        ]
        held = {**options, "way": way} if way else options
        yield _run(folder / f"round-{round_}", world, kill_at=kill_at, **held)
    yield _run(folder / "plain", world, plain=True, **held)


def _alike(folder: pathlib.Path) -> dict:
    """What an undisturbed training of transformers' own told, and the killed one as well."""
    ends = sorted(folder.glob("*/result.json"))
    plain, resumed = (_told(path.parent) for path in ends)
    assert resumed.pop("source") == "memory"
    del plain["source"]
    assert resumed == plain
    return plain


def test_a_killed_training_ends_as_one_that_was_not(tmp_path):
    """Parameters, moments, learning rates, random numbers, losses and evaluations are those of
    transformers' own Trainer without any kill: alone, in a world of two, and where each of two
    holds half of all (FSDP2 by accelerate and by transformers itself); killed in the first epoch
    after a step with an evaluation, and between the epochs. What two have begun, one ends; a
    second training of its begins anew. A step that was evaluated is saved with what was measured,
    due or not. What Trainer's state is not all of is refused."""
    with (
        checkpoint_pod.pods(tmp_path / "one", 1, checkpoint_every=1) as one,
        checkpoint_pod.pods(tmp_path / "two", 2, checkpoint_every=1) as two,
        checkpoint_pod.pods(tmp_path / "cut", 2, checkpoint_every=1) as cut,
        checkpoint_pod.pods(tmp_path / "own", 2, checkpoint_every=1) as own,
        checkpoint_pod.pods(tmp_path / "less", 2, checkpoint_every=100) as less,
    ):
        runs = [
            *_plan(tmp_path / "of-1", one, [("", 3), ("", 9), ("", 0)]),
            *_plan(tmp_path / "of-2", two, [("", 3), ("", 5), ("", 0)]),
            *_plan(tmp_path / "halves", cut, [("accelerate", kill_at) for kill_at in (3, 5, 0)]),
            *_plan(tmp_path / "own-halves", own, [("transformers", 3), ("transformers", 0)]),
        ]
        worlds = [
            [pod.environment(rank=rank, world_size=size, round_=3 - size) for rank, pod in pods]
            for size, pods in ((2, list(enumerate(less))), (1, list(enumerate(less[:1]))))
        ]
        runs.append(_run(tmp_path / "by-two", worlds[0], kill_at=3))
        runs.append(_run(tmp_path / "by-one", worlds[1], twice=True))
        runs.append(_run(tmp_path / "refused", worlds[1], refused=True))
        _all(runs)
        step, measured = less[0].measured()
        slots = [
            Arena(pods[0].settings.volume_path / "arena" / "0").sealed() for pods in (cut, own)
        ]
    for name, steps in (("of-1", 16), ("of-2", 8), ("halves", 8), ("own-halves", 8)):
        plain = _alike(tmp_path / name)
        assert plain["steps"] == steps == len(set(plain["losses"]))
        print(f"\n{name}: {steps} steps, killed, the same bits")
    assert all(seal.pieces for sealed in slots for seal in sealed)
    alone = _told(tmp_path / "by-one")
    assert (alone["source"], alone["steps"], len(alone["losses"])) == ("memory", 16, 16)
    assert alone["losses again"] == 16
    assert (step, measured["eval_loss"]) == (16, alone["judged"][-1])
    # Two steps of four an epoch, then nine batches of 23: the third step of eight.
    assert alone["epochs"][:3] == [1 / 4, 2 / 4, 9 / 23]


WAYS = {
    # No evaluation is better by so much than the first: the third one stops it.
    "stopped": ([3, 5], 6, {"patience": 2, "arguments": {"metric_for_best_model": "eval_loss"}}),
    # In the middle of an epoch, and restarted after its end: what followed has failed.
    "ended": ([3, -1, -1], 11, {"arguments": {"max_steps": 11, "lr_scheduler_type": "constant"}}),
    # Killed in the second epoch, whose order comes of random numbers that were used since.
    "lengths": ([8, 11], 16, {"arguments": {"train_sampling_strategy": "group_by_length"}}),
    # Seven steps and two batches a pass; killed in the second and the third one.
    "stream": ([12, 18], 20, {"stream": True, "arguments": {"max_steps": 20}}),
    "logged": ([3], 16, {"logs": True}),
    # Killed between two logs: the next one's mean is of all steps since the one before.
    "seldom": ([4, 8, 14], 16, {"arguments": {"logging_steps": 5}}),
}


def test_other_ways_to_train_go_on_where_they_were_as_well(tmp_path):
    """As above, by one process. A training that would stop early counts the evaluations of before
    the kill, too; one that had ended trains no more. The order of a later
    epoch that is sampled by length is drawn again, and a stream goes on in its later passes.
    A loss that is logged as a tensor is kept as a number, and what was added up for the next log
    goes on."""
    runs = []
    with contextlib.ExitStack() as stack:
        for name, (kills, _, options) in WAYS.items():
            folder = tmp_path / f"p-{name}"  # short: sockets are below
            pods = stack.enter_context(checkpoint_pod.pods(folder, 1, checkpoint_every=1))
            rounds = [("", kill_at) for kill_at in (*kills, 0)]
            runs += _plan(tmp_path / name, pods, rounds, **options)
        _all(runs)
    for name, (_, steps, _) in WAYS.items():
        assert _alike(tmp_path / name)["steps"] == steps, name
