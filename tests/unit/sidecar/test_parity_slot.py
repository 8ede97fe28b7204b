# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parities in a pod's arena: how many there is room for, and what is found of them."""

from __future__ import annotations

import os

import checkpoint_pod
import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import ArenaRequest, Holding, Lane
from rover_kf.sidecar import parity_slot
from rover_kf.sidecar.slots import Slots

MIB = 1 << 20
LANE = Lane(1, tuple(
    Holding(f"pod-{rank}", "10.0.0.1:7411", 1, rank, 2, 7, replicated=False, snapshot_bytes=9,
            checksum=rank)
    for rank in range(2)
))  # fmt: skip


def _slots(home, arena: int) -> Slots:
    return Slots(checkpoint_pod.settings_of(home, arena_bytes=arena))


def _made(slots: Slots, parity: bytes) -> int:
    """Seal a parity; the slot."""
    content = parity_slot.head(LANE) + parity
    arena = slots.allocate_parity(1, len(content))
    with arena.fill() as filling:
        os.pwrite(filling.descriptor, content, 0)
        filling.seal(step=7, length=len(content), rank=0, world_size=2, round_=1, replicated=False)
        return filling.slot


def test_there_are_two_where_there_is_room_and_one_where_there_is_not(tmp_path):
    """Beside a pod's own; without room for one it is refused with numbers. When they have to grow,
    two may become one."""
    for room, slots in ((8, 2), (4, 1)):
        found = _slots(tmp_path / str(room), (8 + room) * MIB)
        found.allocate(ArenaRequest(0, 4 * MIB))
        arena = found.allocate_parity(0, 3 * MIB)
        assert [arena.slot_path(slot).exists() for slot in (0, 1)] == [True, slots == 2]
        with pytest.raises(errors.ArenaTooSmall, match=f"{9 * MIB}"):
            found.allocate_parity(0, 9 * MIB)
    found = _slots(tmp_path / "8", 16 * MIB)
    found.allocate_parity(0, 3 * MIB)
    arena = found.allocate_parity(0, 7 * MIB)
    assert [arena.slot_path(slot).exists() for slot in (0, 1)] == [True, False]


def test_a_pods_own_slots_go_before_parities(tmp_path):
    """When they grow and there is no room for both, parities are given up; without any the refusal
    stays."""
    slots = _slots(tmp_path, 12 * MIB)
    slots.allocate(ArenaRequest(0, 2 * MIB))
    slots.allocate_parity(0, 3 * MIB)
    assert slots.parities() == ("parity-0",)
    assert slots.allocate(ArenaRequest(0, 5 * MIB)).slot_bytes >= 5 * MIB
    assert slots.parities() == ()
    with pytest.raises(errors.ArenaTooSmall):
        slots.allocate(ArenaRequest(0, 7 * MIB))


def test_a_parity_is_found_with_what_it_is_of(tmp_path):
    """Also by the next sidecar; one that is damaged is told and gone."""
    slots = _slots(tmp_path, 8 * MIB)
    slot = _made(slots, b"parity")
    ((parity,), wrong) = parity_slot.found(_slots(tmp_path, 8 * MIB))
    assert (parity.lane, wrong) == (LANE, ())
    assert (parity.slot.place, parity.slot.step, parity.slot.pod) == (
        "parity-1",
        7,
        "demo-worker-0",
    )
    data = slots.arena("parity-1").slot_path(slot).read_bytes()
    assert data[parity.begin : parity.slot.snapshot_bytes] == b"parity"
    with slots.arena("parity-1").slot_path(slot).open("r+b") as file:
        file.seek(parity.begin)
        file.write(b"P")
    found, (damage,) = parity_slot.found(slots)
    assert found == ()
    assert "step 7" in damage
    assert parity_slot.found(slots) == ((), ())
