# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What storage takes, from the ranks' reports."""

from __future__ import annotations

from rover_kf.api.checkpoints import RankPersisted
from rover_kf.coordinator.commit.committer import MIN_BYTES, StorageRate
from tests.support.states import identities

MIB = 1 << 20


def durable(step, seconds, *, rank=0, mebibytes=100):
    return RankPersisted(
        pod="p",
        rank=rank,
        world_size=2,
        replicated=False,
        file="f",
        file_bytes=mebibytes * MIB,
        checksum=0,
        persist_seconds=9.0,
        storage_seconds=seconds,
        state=identities.state(step),
        origin=identities.state(step),
    )


def test_the_slowest_pod_of_a_step_counts_and_the_median_of_steps():
    """One bad minute is not the storage, one fast pod neither."""
    rate = StorageRate()
    assert rate.value == 0
    for step in range(1, 40):
        for rank, seconds in enumerate((1.0, 2.0)):
            rate.on_rank_durable(durable(step, 100.0 if step == 39 else seconds, rank=rank))
    assert rate.value == 50 * MIB


def test_what_is_small_or_was_there_already_tells_nothing():
    """A file of a few bytes takes as long as storage takes to answer."""
    rate = StorageRate()
    rate.on_rank_durable(durable(1, 0.5, mebibytes=MIN_BYTES // MIB - 1))
    rate.on_rank_durable(durable(2, 0.0))
    assert rate.value == 0
