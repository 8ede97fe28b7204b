# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a round save at all."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import SlotSealed
from rover_kf.coordinator.commit.sealed_steps import SavingRanks
from tests.support.states import identities


def _saved(rank: int, step: int, round_: int = 1, world: int = 2) -> SlotSealed:
    return SlotSealed(
        local_rank=0,
        rank=rank,
        world_size=world,
        round=identities.round_id(round_),
        state=identities.state(step, round_),
        slot=step % 2,
        snapshot_bytes=1,
        replicated=True,
    )


def test_a_rank_that_is_late_is_not_idle():
    """It has saved once: the others may be ahead of it by any number of saves."""
    savers = SavingRanks()
    assert savers.ranks_not_saving(_saved(1, 10), 0.0) == ()
    assert [savers.ranks_not_saving(_saved(0, step), float(step)) for step in range(10, 90)] == [
        ()
    ] * 80


def test_each_round_is_judged_by_itself():
    """What is restored is no save; what is told late of an older round counts for nothing."""
    savers = SavingRanks()
    restored = dataclasses.replace(_saved(2, 9, 2, 3), state=identities.state(9))
    assert savers.ranks_not_saving(restored, 0.0) == ()
    told = [savers.ranks_not_saving(_saved(0, step, 2, 3), 5.0 * step) for step in range(1, 6)]
    assert told == [(), (), (), (1, 2), ()]
    assert savers.ranks_not_saving(_saved(1, 1, 1, 3), 30.0) == ()
    told = [savers.ranks_not_saving(_saved(1, step, 3), 100.0 + 5.0 * step) for step in range(5, 9)]
    assert told == [(), (), (), (0,)]


def test_many_saves_within_seconds_judge_nobody():
    """The other's sidecar may just have been started anew."""
    savers = SavingRanks()
    assert [savers.ranks_not_saving(_saved(0, step), 0.1 * step) for step in range(1, 60)] == [
        ()
    ] * 59
    assert savers.ranks_not_saving(_saved(0, 60), 10.2) == (1,)
