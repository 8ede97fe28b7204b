# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""FSDP2, tensor parallel and DDP go on in worlds of other sizes, from memory and from storage."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator

import pytest
import torch

from rover_kf.api import names
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.export import export
from rover_kf.checkpoint_tools.locate import locate
from tests.support.pods import checkpoint_pod
from tests.support.process_pool import rank_server
from tests.support.training.sharded_training import digest_of, whole

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "training" / "sharded_training.py"


class Worlds:
    """Worlds that train one after the other.

    Args:
        server: forks their ranks.
        folder: for what the ranks have to complain.
    """

    def __init__(self, server: rank_server.RankServer, folder: pathlib.Path) -> None:
        self._server, self._folder = server, folder

    def codes(
        self, some: list[checkpoint_pod.Pod], way: str, round_: int, size: int, level: str
    ) -> list[int]:
        """Two more steps by the first ``size`` pods, one rank each, until the last one is safe at
        that level; the ranks' exit codes."""
        local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
        ranks = [
            {**some[rank].environment(rank=rank, world_size=size, round_=round_), **local}
            for rank in range(size)
        ]
        files = {"result": str(_result(some)), "errors": str(self._errors(round_))}
        self._errors(round_).mkdir(parents=True)
        self._server.start(ranks, way=way, last=2 * round_, level=level, **files)
        return self._server.wait()

    def run(
        self, some: list[checkpoint_pod.Pod], way: str, round_: int, size: int, level: str
    ) -> dict:
        """The same, when it goes well; what rank 0 told."""
        codes = self.codes(some, way, round_, size, level)
        assert codes == [0] * size, self.complaints(round_)
        return json.loads(_result(some).read_text())

    def complaints(self, round_: int) -> list[str]:
        """What each rank of that world wrote to standard error."""
        return [path.read_text() for path in sorted(self._errors(round_).iterdir())]

    def _errors(self, round_: int) -> pathlib.Path:
        return self._folder / f"errors-{round_}"


def _result(some: list[checkpoint_pod.Pod]) -> pathlib.Path:
    return some[0].settings.volume_path / "result.json"


@pytest.fixture(scope="module")
def server() -> Iterator[rank_server.RankServer]:
    """Loads torch and its ways of sharding once for all tests."""
    with rank_server.serving(SCRIPT) as running:
        yield running


@pytest.fixture
def worlds(server, tmp_path) -> Worlds:
    return Worlds(server, tmp_path)


@pytest.mark.parametrize(
    ("way", "kept", "sizes"),
    [
        ("fsdp", "memory", (1, 2)),
        ("fsdp", "memory", (2, 4, 3)),
        ("tensor-parallel", "memory", (4, 3, 2)),
        ("ddp", "memory", (2, 3, 1)),
        ("fsdp", "storage", (4, 3, 2, 4)),
        ("tensor-parallel", "storage", (4, 3, 2, 4)),
        ("ddp", "storage", (4, 3, 2, 4)),
    ],
)
def test_training_goes_on_at_another_size(worlds, tmp_path, way, kept, sizes):
    """Worlds take over from each other: each starts from the very tensors that the one before
    ended with, moments included. A pod that has left the world still gives its pieces."""
    storage = tmp_path / "pvc" if kept == "storage" else None
    digest, step = None, 0
    for round_, size in enumerate(sizes, 1):
        # Memory outlives a round, or is lost with all pods.
        folder = tmp_path / ("pods" if kept == "memory" else f"pods-{round_}")
        with checkpoint_pod.pods(
            folder, 4, storage=storage, checkpoint_persist_seconds=0.0
        ) as some:
            level = "durable" if kept == "storage" else "memory"
            told = worlds.run(some, way, round_, size, level)
        assert (told["resumed"], told["restored"]) == (step, digest)
        if round_ == 1:
            assert told["restored_from"] == "none"
        else:
            assert (told["restored_from"] == "storage") == (kept == "storage")
        step, digest = told["step"], told["ended"]
    print(f"{way}, {kept}: worlds of {sizes} ended at step {step}")
    assert step == 2 * len(sizes)
    if storage is not None:
        assert _exported(storage / "demo", tmp_path / "state.pt") == digest


@pytest.mark.parametrize("kept", ["memory", "storage"])
def test_a_replicated_model_goes_on_sharded_and_back(worlds, tmp_path, kept):
    """DDP, FSDP2 and DDP again, each in a world of another size, and from storage FSDP2 at the size
    that DDP had, too: one and the same state."""
    storage = tmp_path / "pvc" if kept == "storage" else None
    ways = [("ddp", 3), ("fsdp", 2), ("ddp", 3)] + [("fsdp", 3)] * (kept == "storage")
    digest = None
    for round_, (way, size) in enumerate(ways, 1):
        folder = tmp_path / ("pods" if kept == "memory" else f"pods-{round_}")
        with checkpoint_pod.pods(
            folder, 3, storage=storage, checkpoint_persist_seconds=0.0
        ) as some:
            level = "durable" if kept == "storage" else "memory"
            told = worlds.run(some, way, round_, size, level)
        assert (told["resumed"], told["restored"]) == (2 * (round_ - 1), digest)
        digest = told["ended"]


def _exported(job: pathlib.Path, out: pathlib.Path) -> str:
    """What the newest checkpoint holds, by what torch alone loads of it."""
    folder = locate(str(job)).checkpoint()
    export(open_state(locate(str(job)).storage, folder), "torch", out)
    state = torch.load(out, weights_only=True)
    return digest_of(whole(state["model"]), whole(state["optimizer"]["state"]))


def test_a_lost_pod_comes_back_from_its_partners_memory(worlds, tmp_path):
    """Sharded state without any storage: a pod is lost with its memory, and the pod that takes its
    place has the same bits again, from the replica that another pod kept."""
    with checkpoint_pod.pods(tmp_path, 3) as three:
        ended = worlds.run(three, "fsdp", 1, 3, "replica")["ended"]
        lost = three[1]
        lost.kill()
        shutil.rmtree(lost.settings.volume_path)
        lost.start()
        told = worlds.run(three, "fsdp", 2, 3, "replica")
        assert (told["resumed"], told["restored"]) == (2, ended)
        (story,) = lost.told(names.EVENT_RESTORED)
        assert "rank 1 of 3 resumes at step 2 from peer" in story
        kept = [
            {path.parent.name for path in pod.settings.volume_path.glob("arena/replica-*/slot-0")}
            for pod in three
        ]
        assert kept == [{"replica-1"}, {"replica-2"}, {"replica-0"}]


def test_two_lost_pods_are_one_too_many(worlds, tmp_path):
    """Partner and pod lost together, and no storage: an error that says what is missing."""
    with checkpoint_pod.pods(tmp_path, 3) as three:
        worlds.run(three, "fsdp", 1, 3, "replica")
        for pod in three[1:]:
            pod.kill()
            shutil.rmtree(pod.settings.volume_path)
            pod.start()
        assert worlds.codes(three, "fsdp", 2, 3, "memory") == [1, 1, 1]
        told = worlds.complaints(2)
        assert len(told) == 3
        assert all("step 2 of round 1 lacks ranks [2]" in text for text in told)
