# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The digits sample killed again and again ends with the very result of a run without a crash."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from tests.support.pods import checkpoint_pod
from tests.support.process_pool.rank_server import RankServer, serving
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

TESTS = pathlib.Path(__file__).parents[1]
SAMPLES = TESTS.parent / "manifests" / "samples"
STEPS = 60
KILLS, EVERY, LAST = (4, 9, 16, 23), 2, 26
"""Of two ranks: steps in which both are killed, between saves, and in all."""


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Loads torch once for all trainings."""
    with serving(TESTS / "support" / "training" / "sample_ranks.py") as running:
        yield running


@pytest.fixture(scope="module")
def resumed() -> Iterator[RankServer]:
    """The same for ranks that kill themselves."""
    with serving(TESTS / "support" / "training" / "resumed_training.py") as running:
        yield running


def _start(
    server: RankServer, pod: checkpoint_pod.Pod, result: pathlib.Path, round_: int, *, last: int = 0
) -> int:
    """The process that trains, to its end or until it is killed near that step."""
    command = [SAMPLES / "digits.py", "--steps", STEPS, "--result", result]
    command += ["--samples-per-second", "2000"] if last else []
    work = {"command": [*map(str, command)], "last": last}
    (rank,) = server.start([pod.environment(round_=round_)], **work)
    return rank


def _reached(arena: Arena, step: int) -> bool:
    return any(seal.state.step >= step for seal in arena.sealed())


def test_resume_equals_no_crash(server, tmp_path):
    """SIGKILL of the training process twice, and of the sidecar: bit-equal final state."""
    files: list[bytes] = []
    for name, kills in (("calm", ()), ("killed", (12, 30))):
        storage = tmp_path / f"{name}-pvc"
        changes = {"checkpoint_every": 5, "storage": storage}
        with checkpoint_pod.pods(tmp_path / name, 1, **changes) as (pod,):
            arena = Arena(pod.settings.volume_path / "arena" / "0")
            result = tmp_path / f"{name}.json"
            for round_, step in enumerate(kills, 1):
                rank = _start(server, pod, result, round_, last=step + 6)
                eventually(functools.partial(_reached, arena, step), within=240)
                os.kill(rank, signal.SIGKILL)
                assert server.wait() == [-signal.SIGKILL]
                if round_ == 2:
                    pod.kill()
                    pod.start()
            _start(server, pod, result, len(kills) + 1)
            assert server.wait() == [0]
            told = json.loads(result.read_text())
            assert told["restored_from"] == ("memory" if kills else "none")
            assert len(pod.told(names.EVENT_RESTORED)) == len(kills)
            folder = storage / "demo" / f"step-{STEPS:012d}-{len(kills) + 1}"
            eventually((folder / "manifest.json").exists)
            files.append((folder / "rank-00000.safetensors").read_bytes())
    assert files[0] == files[1]


class Lineage:
    """What the ranks of a training wrote down, over all its rounds.

    Args:
        folder: with a file a rank.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.begins: list[list[str]] = []
        """What each rank's rounds began with: step and source."""
        self.losses: list[dict[int, set[str]]] = []
        """Of each rank by step; more than one where a step done again has another loss."""
        for file in sorted(folder.iterdir()):
            begins, losses = [], dict[int, set[str]]()
            for line in file.read_text().splitlines():
                kind, _, told = line.partition(" ")
                if kind == "from":
                    begins.append(told)
                else:
                    losses.setdefault(int(kind), set()).add(told)
            self.begins.append(begins)
            self.losses.append(losses)


@pytest.mark.parametrize("way", ["digits", "char-gpt", "fsdp"])
def test_two_ranks_killed_again_and_again_lose_nothing(resumed, tmp_path, way):
    """DDP with BatchNorm, DDP of a transformer, FSDP2: after each of four kills, on both sides of a
    save, the ranks go on from one step; all losses and the last files are those of a calm run."""
    found: dict[str, tuple[Lineage, list[bytes]]] = {}
    for name, kills in (("calm", ()), ("killed", KILLS)):
        journal, storage = tmp_path / f"{name}-journal", tmp_path / f"{name}-pvc"
        journal.mkdir()
        changes = {
            "checkpoint_every": EVERY,
            "storage": storage,
            "checkpoint_persist_seconds": 3600.0,
        }
        with checkpoint_pod.pods(tmp_path / name, 2, **changes) as some:
            for round_, dies in enumerate((*kills, 0), 1):
                local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
                ranks = [
                    {**pod.environment(rank=rank, world_size=2, round_=round_), **local}
                    for rank, pod in enumerate(some)
                ]
                resumed.start(ranks, way=way, steps=LAST, dies=dies, journal=str(journal))
                first, second = resumed.wait()
                assert first == (-signal.SIGKILL if dies else 0)
                # Of a model with running statistics nobody saves a step that rank 0 does not.
                alone = way == "digits" and dies > 0 and dies % EVERY == 0
                assert second == (1 if alone else first)
            folder = storage / "demo" / f"step-{LAST:012d}-{len(kills) + 1}"
            eventually((folder / "manifest.json").exists)
            files = [(folder / f"rank-{rank:05d}.safetensors").read_bytes() for rank in range(2)]
            found[name] = Lineage(journal), files
    (calm, calm_files), (killed, killed_files) = found["calm"], found["killed"]
    for rounds in (killed.begins[0], killed.begins[1]):
        begins = [int(told.split()[0]) for told in rounds]
        assert len(begins) == len(KILLS) + 1
        for begin, dies in zip(begins[1:], KILLS, strict=True):
            assert dies - EVERY <= begin <= dies
    assert [told.split()[0] for told in killed.begins[0]] == [
        told.split()[0] for told in killed.begins[1]
    ]
    assert killed.losses == calm.losses
    assert [sorted(losses) for losses in calm.losses] == [list(range(1, LAST + 1))] * 2
    assert all(len(each) == 1 for losses in calm.losses for each in losses.values())
    assert killed_files == calm_files


def _train_world(
    server: RankServer,
    some: list[checkpoint_pod.Pod],
    result: pathlib.Path,
    *,
    round_: int,
    steps: int,
) -> dict:
    """By one DDP rank in each of the pods; what rank 0 told."""
    size = len(some)
    local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
    ranks = [
        {**pod.environment(rank=rank, world_size=size, round_=round_), **local}
        for rank, pod in enumerate(some)
    ]
    model = ("--width", "16", "--layers", "1", "--global-batch", "12")
    command = [SAMPLES / "char_gpt.py", "--steps", steps, "--result", result, *model]
    server.start(ranks, command=[*map(str, command)])
    assert server.wait() == [0] * size
    return json.loads(result.read_text())


def test_a_replicated_state_restores_at_any_world_size(server, tmp_path):
    """One rank, then DDP of two, going on where the last world ended; both hold the same bits."""
    changes = {"checkpoint_every": 5, "checkpoint_verify_replicas_every": 1}
    with checkpoint_pod.pods(tmp_path / "pods", 2, **changes) as two:
        result = tmp_path / "result.json"
        found = []
        for round_, size in enumerate((1, 2), 1):
            told = _train_world(server, two[:size], result, round_=round_, steps=10 * round_)
            found.append((told["world_size"], told["resumed_step"], told["restored_from"]))
        assert found == [(1, 0, "none"), (2, 10, "memory")]
        (newcomer,) = two[1].told(names.EVENT_RESTORED)
        assert "rank 1 of 2 resumes at step 10 from peer" in newcomer
        log = two[0].settings.volume_path / checkpoint_pod.LOG
        eventually(lambda: "step 20 of round 2: 2 ranks hold the same" in log.read_text())
        assert two[0].told(names.EVENT_REPLICA_MISMATCH) == []
