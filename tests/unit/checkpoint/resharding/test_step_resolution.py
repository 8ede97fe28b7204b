# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The common step: never mixed, never older than it must be."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest, SlotInfo
from rover_kf.checkpoint.resharding.step_resolution import StoredStep, resolve
from tests.support.states import identities


def _held(
    rank: int, step: int, *, round_: int = 1, world: int = 2, replicated=False, pieces=False
) -> SlotInfo:
    return SlotInfo(
        pod=f"pod-{rank}",
        address=f"10.0.0.{rank}:7411",
        local_rank=0,
        rank=rank,
        world_size=world,
        state=identities.state(step, round_),
        replicated=replicated,
        snapshot_bytes=9,
        checksum=step,
        pieces=pieces,
    )


def _ask(*holdings: tuple[SlotInfo, ...]) -> list[RestoreStepRequest]:
    return [
        RestoreStepRequest(
            round=identities.round_id(5), rank=rank, world_size=len(holdings), slots=held
        )
        for rank, held in enumerate(holdings)
    ]


def _found(requests: list[RestoreStepRequest], stored: StoredStep | None = None) -> list[tuple]:
    plan = resolve(requests, stored)
    return [(_step(plan[rank]), plan[rank].source) for rank in sorted(plan)]


def _step(reply: RestoreStepReply) -> int | None:
    return reply.state.step if reply.state else None


def test_nothing_anywhere_is_a_fresh_start():
    """No holdings, no storage: every rank starts from zero."""
    assert _found(_ask((), ())) == [(None, "none"), (None, "none")]


def test_replicated_takes_the_greatest_step_of_any_rank():
    """One whole copy is enough; who lacks it gets it from a peer who has it."""
    a, b = _held(0, 20, replicated=True), _held(1, 30, replicated=True)
    requests = _ask((a,), (b,), ())
    assert _found(requests) == [(30, "peer"), (30, "memory"), (30, "peer")]
    assert resolve(requests, None)[2].slots == (b,)


def test_who_lacks_a_replicated_state_knows_of_others_that_hold_it():
    """The holder that it is sent to may be out of its reach; two more are named, no thousands."""
    held = [_held(rank, 30, world=6, replicated=True) for rank in range(5)]
    requests = _ask(*((one,) for one in held), ())
    reply = resolve(requests, None)[5]
    assert (reply.source, reply.slots, reply.alternatives) == ("peer", (held[0],), tuple(held[1:3]))


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
    assert [plan[rank].slots[0].rank for rank in (0, 1)] == [0, 1]


def test_storage_is_taken_only_if_newer():
    """Equal or older than memory: memory; newer, or nothing in memory: storage."""
    requests = _ask((_held(0, 20, replicated=True),), ())
    for step, expected in ((20, "memory"), (21, "storage")):
        plan = resolve(
            requests, StoredStep(identities.state(step), "folder", fits=True, world_size=2)
        )
        assert plan[0].source == expected
    stored = StoredStep(identities.state(5), "folder", fits=True, world_size=7)
    assert _found(_ask((), ()), stored) == [(5, "storage"), (5, "storage")]


def test_a_sharded_state_of_another_world_is_refused_not_dropped():
    """Starting from zero in silence would lose the run: an error says what to do."""
    requests = _ask((_held(0, 20, world=3),), (_held(1, 20, world=3),))
    with pytest.raises(
        errors.WrongWorldSize, match="world of 3, each rank its own, and this one has 2"
    ):
        resolve(requests, None)
    with pytest.raises(errors.WrongWorldSize, match="world of 4"):
        resolve(_ask((), ()), StoredStep(identities.state(5), "folder", fits=False, world_size=4))


def test_pieces_of_another_world_are_all_named():
    """Three ranks' pieces serve two: each learns of all, first of the one whose place it takes."""
    held = [_held(rank, 20, world=3, pieces=True) for rank in range(3)]
    plan = resolve(_ask((held[0],), (held[2], held[1])), None)
    assert [holding.rank for holding in plan[0].slots] == [0, 1, 2]
    assert [holding.rank for holding in plan[1].slots] == [1, 0, 2]
    assert [plan[rank].source for rank in (0, 1)] == ["peer", "peer"]
    assert resolve(_ask(tuple(held)), None)[0].source == "memory"


def test_a_change_of_size_that_was_interrupted_is_begun_again():
    """Rank 0 has its new piece, rank 1 had not: the old world's pieces are still all there."""
    old = [_held(rank, 20, world=3, pieces=True) for rank in range(3)]
    new = _held(0, 20, world=2, pieces=True)
    plan = resolve(_ask((new, old[0]), (old[1], old[2])), None)
    assert {h.world_size for reply in plan.values() for h in reply.slots} == {3}
    both = _held(1, 20, world=2, pieces=True)
    plan = resolve(_ask((new, old[0]), (both, old[1], old[2])), None)
    assert [reply.slots for reply in plan.values()] == [(new,), (both,)]


def test_pieces_that_lack_a_rank_are_no_state():
    """Two of three pieces are nothing; an older step that is whole is taken."""
    old = [_held(rank, 10, world=3, pieces=True) for rank in range(3)]
    requests = _ask(
        (_held(0, 20, world=3, pieces=True), *old), (_held(1, 20, world=3, pieces=True),)
    )
    assert {reply.state.step for reply in resolve(requests, None).values()} == {10}
