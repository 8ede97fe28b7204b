# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One bit that flips in one rank's parameters is found, and said where; real pods, real state.

The ranks of a data-parallel training are in this process, each with a pod of its own: gradients are
averaged as DistributedDataParallel does it, BatchNorm's figures are each rank's own.
"""

from __future__ import annotations

import pytest
import torch

from rover_kf.api import names
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

pytestmark = pytest.mark.torch

RANKS = 3
SAVES_IN_A_ROW = 40


class Rank:
    """One rank's state and its pod."""

    def __init__(self, pod: checkpoint_pod.Pod, rank: int) -> None:
        torch.manual_seed(1)
        self.pod = pod
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
        )
        table = torch.nn.Embedding(64, 16 << 10)  # large enough to be overwritten while it is read
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.state = {"model": self.model, "optimizer": self.optimizer, "table": table}
        variables = pod.environment(rank=rank, world_size=RANKS)
        settings = trainer_settings.read(variables)
        self.checkpointer = Checkpointer(settings=settings, overlap=False)
        self.generator = torch.Generator().manual_seed(rank)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(6, 8, generator=self.generator)).square().sum().backward()

    def flip(self, bit: int) -> None:
        """One bit of the first weight."""
        with torch.no_grad():
            self.model[0].weight.view(torch.int32)[0, 0] ^= 1 << bit


def _train(ranks: list[Rank]) -> None:
    """An optimizer step on all ranks, each on its own data."""
    for rank in ranks:
        rank.backward()
    for same in zip(*(rank.model.parameters() for rank in ranks), strict=True):
        mean = torch.stack([parameter.grad for parameter in same]).mean(0)
        for parameter in same:
            parameter.grad = mean.clone()
    for rank in ranks:
        rank.optimizer.step()


def _save(ranks: list[Rank], step: int) -> None:
    for rank in ranks:
        rank.checkpointer.save(step, rank.state)


def _logged(pod: checkpoint_pod.Pod, line: str) -> int:
    """How often."""
    return (pod.settings.volume_path / checkpoint_pod.LOG).read_text().count(line)


def test_a_flipped_bit_is_told_with_rank_and_tensor(tmp_path):
    """Equal ranks whose running figures differ: nothing is told, also where saves overwrite what is
    being read. A bit flips in one live parameter: one Event, however often it is found."""
    changes = {"checkpoint_verify_replicas_every": 1, "arena_bytes": 64 << 20}
    with checkpoint_pod.pods(tmp_path, RANKS, **changes) as pods:
        ranks = [Rank(pod, rank) for rank, pod in enumerate(pods)]
        last = SAVES_IN_A_ROW
        for step in range(1, last + 1):
            if step % 5 == 1:
                _train(ranks)
            _save(ranks, step)
        equal = "ranks hold the same"
        eventually(lambda: _logged(pods[0], f"step {last} of round 1: {RANKS} {equal}"))
        figures = {rank.model[1].running_mean.numpy().tobytes() for rank in ranks}
        assert len(figures) == RANKS
        assert pods[0].told(names.EVENT_REPLICA_MISMATCH) == []
        lost = sum(_logged(pod, "is not checked") for pod in pods)
        print(
            f"{last} saves in a row: {_logged(pods[0], equal)} compared, {lost} slots overwritten"
        )

        ranks[2].flip(3)  # of the mantissa: no loss would show it
        _save(ranks, last + 1)
        (told,) = eventually(lambda: pods[0].told(names.EVENT_REPLICA_MISMATCH))
        print(told)
        assert told.startswith(f"step {last + 1}: rank 2 (demo-worker-2) differs from the other 2")
        assert f"hold alike: model.0.weight. All were equal at step {last};" in told

        _train(ranks)
        _save(ranks, last + 2)
        eventually(lambda: _logged(pods[0], f"step {last + 2}: ranks still differ"))
        ranks[1].flip(5)
        _save(ranks, last + 3)
        (again,) = eventually(lambda: pods[0].told(names.EVENT_REPLICA_MISMATCH)[1:])
        assert again.startswith(f"step {last + 3}: ranks 0 (demo-worker-0), 1 (demo-worker-1), 2 ")
        for rank in ranks:
            rank.checkpointer.close()
