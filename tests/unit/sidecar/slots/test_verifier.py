# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots verified between two lives of the training processes."""

from __future__ import annotations

import asyncio
import os

from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.verifier import SlotVerifier
from tests.support.pods import checkpoint_pod
from tests.support.states import identities


def _sealed(slots: PodSlots, place: int, step: int) -> Seal:
    slots.allocate(ArenaRequest(place, 8))
    with slots.arena(place).fill() as filling:
        os.pwrite(filling.descriptor, b"%d" % step, 0)
        return filling.seal(
            state=identities.state(step), length=8, rank=place, world_size=2, replicated=False
        )


def test_each_end_of_the_processes_gives_each_rank_one_answer(tmp_path):
    """The newest seal, once: whoever has taken it may write. Without an end there is none, and a
    seal that came after it is not the one that was verified."""

    async def run() -> None:
        slots = PodSlots(checkpoint_pod.settings_of(tmp_path))
        examination = SlotVerifier(slots)
        _sealed(slots, 0, 1)
        newest, other = _sealed(slots, 0, 2), _sealed(slots, 1, 2)
        assert await examination.pop_verified(0) is None
        examination.begin()
        assert [await examination.pop_verified(place) for place in (0, 0, 1)] == [
            newest,
            None,
            other,
        ]
        examination.begin()
        examination.begin()  # it ended again before the first was through
        _sealed(slots, 0, 3)
        assert await examination.pop_verified(0) in (newest, slots.arena(0).sealed()[0])
        await examination.stop()

    asyncio.run(run())


def test_a_damaged_slot_is_left_to_the_restore(tmp_path):
    """It gets no good name, and is still there for whoever tells of damages."""

    async def run() -> None:
        slots = PodSlots(checkpoint_pod.settings_of(tmp_path))
        seal = _sealed(slots, 0, 1)
        slots.checksum(0, seal)
        with slots.arena(0).slot_path(seal.slot).open("r+b") as slot:
            slot.write(b"X")
        examination = SlotVerifier(slots)
        examination.begin()
        assert await examination.pop_verified(0) is None
        assert slots.arena(0).sealed() == (seal,)

    asyncio.run(run())
