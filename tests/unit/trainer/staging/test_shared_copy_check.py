# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod's first rank does not save for another one is told while both train."""

from __future__ import annotations

import os

import pytest
import torch

from rover_kf import errors
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.staging.shared_copy_check import SharedCopyCheck
from rover_kf.trainer.state import flatten as states
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


class Pod:
    """The first rank's slots, and the second one's check."""

    def __init__(self, home) -> None:
        arena_allocation.allocate(home / "arena", 0, 1 << 20, max_bytes=4 << 20)
        self._arena = Arena(home / "arena" / "0")
        environment = {"ROVER_HOME": str(home), "LOCAL_RANK": "1", "RANK": "1", "ROVER_ROUND": "3"}
        self.check = SharedCopyCheck(trainer_settings.read(environment))

    def save(self, step: int, state: dict[str, object], round_: int = 3) -> None:
        """By the first rank."""
        content = trainer_slot.written(states.flatten(state, ranks=2))
        with self._arena.fill() as filling:
            os.pwrite(filling.descriptor, content, 0)
            filling.seal(
                step=step, length=len(content), rank=0, world_size=2, round_=round_,
                replicated=True, ranks=2,
            )  # fmt: skip


def _light(**state: object) -> states.FlatState:
    return states.flatten(state, ranks=0)


def test_a_module_that_the_first_rank_lacks_is_told_by_name(tmp_path):
    """At the second save: by then the first rank has sealed the first."""
    pod, model = Pod(tmp_path), torch.nn.Linear(3, 2)
    parts = _light(model=model, extra=torch.nn.Linear(2, 2))
    pod.check.check(1, 10, parts)
    pod.save(10, {"model": model})
    with pytest.raises(errors.CheckpointError, match=r"rank 1 has extra.bias, extra.weight, which"):
        pod.check.check(1, 20, parts)


def test_what_the_first_rank_has_besides_is_no_harm(tmp_path):
    """An average of the weights on rank 0; the second rank's own tensors need not be there."""
    pod, model = Pod(tmp_path), torch.nn.Linear(3, 2)
    parts = _light(model=model, own=torch.zeros(3))
    pod.check.check(1, 10, parts)
    pod.save(10, {"model": model, "average": torch.nn.Linear(3, 2)})
    pod.check.check(1, 20, parts)


def test_another_step_round_or_era_is_not_compared(tmp_path):
    """The first rank may not have come to it, and a state that grew has grown there as well."""
    pod, model = Pod(tmp_path), torch.nn.Linear(3, 2)
    parts = _light(model=model, extra=torch.nn.Linear(2, 2))
    pod.save(10, {"model": model}, round_=2)
    pod.check.check(1, 10, parts)
    pod.check.check(1, 20, parts)
    pod.save(20, {"model": model})
    pod.check.check(2, 30, parts)
