# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The common step: never mixed, never older than it must be."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api.messages import Holding, ResolveRequest
from rover_kf.checkpoint.resolve import Stored, resolve


def _held(rank: int, step: int, *, round_: int = 1, world: int = 2, replicated=False) -> Holding:
    return Holding(f"pod-{rank}", f"10.0.0.{rank}:7411", 0, rank, world, step, replicated, 9, step,
                   round_)  # fmt: skip


def _ask(*holdings: tuple[Holding, ...]) -> list[ResolveRequest]:
    return [ResolveRequest(5, rank, len(holdings), held) for rank, held in enumerate(holdings)]


def _found(requests: list[ResolveRequest], stored: Stored | None = None) -> list[tuple]:
    plan = resolve(requests, stored)
    return [(plan[rank].step, plan[rank].source) for rank in sorted(plan)]


def test_nothing_anywhere_is_a_fresh_start():
    """No holdings, no storage: every rank starts from zero."""
    assert _found(_ask((), ())) == [(None, "none"), (None, "none")]


def test_replicated_takes_the_greatest_step_of_any_rank():
    """One whole copy is enough; who lacks it gets it from a peer who has it."""
    a, b = _held(0, 20, replicated=True), _held(1, 30, replicated=True)
    requests = _ask((a,), (b,), ())
    assert _found(requests) == [(30, "peer"), (30, "memory"), (30, "peer")]
    assert resolve(requests, None)[2].holding == b


def test_sharded_takes_the_greatest_step_that_all_hold():
    """A step that one rank lacks is not restored by any."""
    requests = _ask((_held(0, 20), _held(0, 30)), (_held(1, 10), _held(1, 20)))
    assert _found(requests) == [(20, "memory"), (20, "memory")]


def test_sharded_never_mixes_a_step_with_the_same_step_before_a_rollback():
    """Rank 1's step 30 of round 1 is not rank 0's step 30 of round 2."""
    requests = _ask(
        (_held(0, 20, round_=1), _held(0, 30, round_=2)),
        (_held(1, 20, round_=1), _held(1, 30, round_=1)),
    )
    assert _found(requests) == [(20, "memory"), (20, "memory")]


def test_sharded_ranks_that_changed_places_fetch_their_part():
    """Ranks moved between pods: each gets the part of its new rank from where it is."""
    requests = _ask((_held(1, 20),), (_held(0, 20),))
    plan = resolve(requests, None)
    assert [plan[rank].source for rank in (0, 1)] == ["peer", "peer"]
    assert [plan[rank].holding.rank for rank in (0, 1)] == [0, 1]


def test_storage_is_taken_only_if_newer():
    """Equal or older than memory: memory; newer, or nothing in memory: storage."""
    requests = _ask((_held(0, 20, replicated=True),), ())
    for step, expected in ((20, "memory"), (21, "storage")):
        plan = resolve(requests, Stored(step, "folder", 2, replicated=True))
        assert plan[0].source == expected
    stored = Stored(5, "folder", 7, replicated=True)
    assert _found(_ask((), ()), stored) == [(5, "storage"), (5, "storage")]


def test_a_sharded_state_of_another_world_is_refused_not_dropped():
    """Starting from zero in silence would lose the run: an error says what to do."""
    requests = _ask((_held(0, 20, world=3),), (_held(1, 20, world=3),))
    with pytest.raises(errors.CheckpointError, match="world of 3 and this one has 2"):
        resolve(requests, None)
    with pytest.raises(errors.CheckpointError, match="world of 4"):
        resolve(_ask((), ()), Stored(5, "folder", 4, replicated=False))
