# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training that is killed and resumed computes the bits of an undisturbed one.

``ROVER_EVERY_STEP=1`` kills after each step of each way at each world size, which takes minutes.
"""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator, Sequence

import pytest

from tests.support.pods import checkpoint_pod
from tests.support.process_pool.rank_server import RankServer, serving

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

TESTS = pathlib.Path(__file__).parents[1]
STEPS = 6
FIRST = {"static_graph": 2}
"""First step after which a kill changes no bit, where it is not step 1 (guarantees.md has why)."""


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Loads torch once for all trainings."""
    with serving(TESTS / "support" / "training" / "bucketed_training.py") as running:
        yield running


class Training:
    """Lives of one training, each in a round of its own.

    Args:
        server: forks the ranks.
        folder: for all that the training writes.
        way: how the model is trained.
        world_size: ranks of one pod.
    """

    def __init__(self, server: RankServer, folder: pathlib.Path, way: str, world_size: int) -> None:
        self._server, self._folder = server, folder
        self._way, self._world_size = way, world_size
        folder.mkdir()

    def undisturbed(self) -> list[list[str]]:
        """Train without rover-kf; each rank's digests."""
        assert self._live({}, 0) == [0] * self._world_size
        return [words[1:] for words in self._results()]

    def killed(self, kills: Sequence[int]) -> list[list[str]]:
        """Train and kill after each of these steps; each rank's digests."""
        with checkpoint_pod.pods(self._folder / "pods", 1, checkpoint_every=1) as (pod,):
            for round_, dies in enumerate((*kills, 0), 1):
                environment = pod.environment(world_size=self._world_size, round_=round_)
                expected = -signal.SIGKILL if dies else 0
                assert self._live(environment, dies) == [expected] * self._world_size
        found = self._results()
        assert {words[0] for words in found} == {str(kills[-1])}
        return [words[1:] for words in found]

    def _live(self, environment: dict[str, str], dies: int) -> list[int]:
        size = str(self._world_size)
        common = {
            **environment,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(checkpoint_pod.free_port()),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        }
        ranks = [{**common, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(self._world_size)]
        work = {"way": self._way, "steps": STEPS, "dies": dies, "result": str(self._folder)}
        self._server.start(ranks, **work)
        return self._server.wait()

    def _results(self) -> list[list[str]]:
        files = (self._folder / str(rank) for rank in range(self._world_size))
        return [file.read_text().split() for file in files]


def _differing(
    server: RankServer,
    folder: pathlib.Path,
    way: str,
    world_size: int,
    lives: Sequence[Sequence[int]],
) -> list[Sequence[int]]:
    """Kills after which the final state is another one."""
    calm = Training(server, folder / "calm", way, world_size).undisturbed()
    return [
        kills
        for number, kills in enumerate(lives)
        if Training(server, folder / str(number), way, world_size).killed(kills) != calm
    ]


@pytest.mark.parametrize(
    ("way", "world_size"), [("ddp", 2), ("ddp", 3), ("wrapped_late", 3), ("ddp", 4)]
)
def test_killed_ddp_has_the_bits_of_an_undisturbed_run(server, tmp_path, way, world_size):
    """Several buckets, killed after step 1, and again after step 3."""
    assert _differing(server, tmp_path, way, world_size, [(1, 3)]) == []


WAYS = (
    "ddp", "reordered", "wrapped_late", "accumulated", "static_graph", "unused_parameters",
    "bucket_views", "bf16_hook", "fsdp", "hsdp",
)  # fmt: skip
EVERY = [(way, size) for way in WAYS for size in (2, 3, 4) if way != "hsdp" or size % 2 == 0]
"""The mesh of HSDP has two rows."""

if os.environ.get("ROVER_EVERY_STEP"):  # takes minutes

    @pytest.mark.parametrize(("way", "world_size"), EVERY)
    def test_killed_after_every_step(server, tmp_path, way, world_size):
        """One life for each step, and one training that is killed after each step."""
        every = range(FIRST.get(way, 1), STEPS)
        lives = [*((step,) for step in every), (*every,)]
        assert _differing(server, tmp_path, way, world_size, lives) == []
