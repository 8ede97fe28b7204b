# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The slot of a pod's first rank, found by the ranks that start from it as well."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import (
    ArenaRequest,
    RestoreReply,
    RestoreRequest,
    RestoreStepReply,
    SlotInfo,
)
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.restore import shared_slot as leads_module
from rover_kf.sidecar.restore.shared_slot import SharedSlots
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

FIRST = RestoreRequest(0, 2, 4, 5, ranks=2)
SECOND = RestoreRequest(1, 3, 4, 5, ranks=0)
CHOICE = RestoreStepReply(
    7,
    "peer",
    (
        SlotInfo(
            "p", "a", 0, 0, 4, 7, replicated=True, snapshot_bytes=3, checksum=1, origin_round=4
        ),
    ),
)


@pytest.fixture
def slots(tmp_path) -> PodSlots:
    found = PodSlots(checkpoint_pod.settings_of(tmp_path))
    found.allocate(ArenaRequest(0, 100))
    found.assignments.set(1, RankAssignment(3, 4, 5))
    return found


def _sealed(slots: PodSlots, *, round_: int = 4, ranks: int = 2) -> Seal:
    arena = slots.arena(0)
    with arena.fill() as filling:
        os.pwrite(filling.descriptor, b"all", 0)
        return filling.seal(
            step=7, length=3, rank=2, world_size=4, round_=round_, replicated=True, ranks=ranks
        )


async def _waits(work: asyncio.Task[object]) -> None:
    """It has looked, and goes on looking."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(work), 0.2)


def test_the_others_wait_for_the_first_ranks_restore(slots):
    """A slot that is there before is not taken while the first rank is still asking."""

    async def scene() -> None:
        leads = SharedSlots(slots)
        slots.assignments.set(0, RankAssignment(2, 4, 5))
        seal = _sealed(slots)
        with leads.restoring(FIRST):
            waiting = asyncio.create_task(leads.find(SECOND, CHOICE))
            await _waits(waiting)
            leads.publish(FIRST, RestoreReply(7, "peer"), seal)
            found = await waiting
        assert (found.seal, found.source) == (seal, "peer")

    asyncio.run(scene())


@pytest.mark.parametrize("refused", [False, True])
def test_the_others_go_on_as_soon_as_the_first_rank_does(slots, monkeypatch, refused):
    """Not at their next look, or all ranks of a job that recovers would wait for it."""
    monkeypatch.setattr(leads_module, "_POLL_SECONDS", 3600.0)

    async def scene() -> None:
        leads = SharedSlots(slots)
        slots.assignments.set(0, RankAssignment(2, 4, 5))
        with contextlib.suppress(errors.StorageError), leads.restoring(FIRST):
            waiting = asyncio.create_task(leads.find(SECOND, CHOICE))
            await _waits(waiting)
            if refused:
                raise errors.StorageError("the disk is gone")
            leads.publish(FIRST, RestoreReply(7, "memory"), _sealed(slots))
        with pytest.raises(errors.CheckpointError) if refused else contextlib.nullcontext():
            assert (await asyncio.wait_for(waiting, 60)).source == "memory"

    asyncio.run(scene())


def test_a_sidecar_that_was_started_anew_finds_it_in_the_slots(slots):
    """Verified, of that very state, and only once the first rank has asked in this round."""

    async def scene() -> None:
        leads = SharedSlots(slots)
        waiting = asyncio.create_task(leads.find(SECOND, CHOICE))
        _sealed(slots, round_=3)
        await _waits(waiting)
        seal = _sealed(slots)
        await _waits(waiting)
        slots.assignments.set(0, RankAssignment(2, 4, 5))
        assert (await waiting).seal == seal

    asyncio.run(scene())


def test_a_torn_slot_is_not_taken(slots):
    """Its bytes are not those that were sealed."""

    async def scene() -> None:
        leads = SharedSlots(slots)
        slots.assignments.set(0, RankAssignment(2, 4, 5))
        seal = _sealed(slots)
        slots.checksum(0, seal)
        path = slots.arena(0).slot_path(seal.slot)
        path.write_bytes(b"ALL" + path.read_bytes()[3:])
        waiting = asyncio.create_task(leads.find(SECOND, CHOICE))
        await _waits(waiting)
        slots.arena(0).discard(seal)
        again = _sealed(slots)
        assert (await waiting).seal == again

    asyncio.run(scene())


def test_what_the_first_rank_was_refused_the_others_are(slots):
    """They would wait for nothing; in the next round it is another answer."""

    async def scene() -> None:
        leads = SharedSlots(slots)
        with pytest.raises(errors.StorageError), leads.restoring(FIRST):
            raise errors.StorageError("the disk is gone")
        with pytest.raises(errors.CheckpointError, match="the disk is gone"):
            await leads.find(SECOND, CHOICE)

    asyncio.run(scene())


def test_nobody_waits_for_a_round_that_is_over(slots):
    """The rank that asked has been taken into another one."""

    async def scene() -> None:
        waiting = asyncio.create_task(SharedSlots(slots).find(SECOND, CHOICE))
        await _waits(waiting)
        slots.assignments.set(1, RankAssignment(3, 4, 6))
        with pytest.raises(errors.CheckpointError, match="round 5 is over"):
            await waiting

    asyncio.run(scene())
    eventually(lambda: slots.local_ranks() == (0,))
