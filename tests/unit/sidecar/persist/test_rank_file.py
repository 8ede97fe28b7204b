# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's file has the bytes that were sealed, or there is no report of it."""

from __future__ import annotations

import pytest

from rover_kf import errors
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states.synthetic_states import FORMS, Form


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_bits_that_memory_has_lost_come_to_no_file(tmp_path, kind, world_size):
    """Between the seal and the persist; without the loss the same slot is written."""
    with in_memory() as home, running() as runner:
        world = World(home, tmp_path, Form(kind, world_size=world_size), runner)
        number = world.begin()
        world.save(10, number)
        slots = world.slots[0]
        (seal,) = slots.arena(0).sealed()
        slots.checksum(0, seal)
        assert world.write(0, 10, number).file_bytes > 0
        with slots.arena(0).slot_path(seal.slot).open("r+b") as slot:
            slot.seek(seal.length - 9)
            lost = slot.read(1)[0] ^ 4
            slot.seek(seal.length - 9)
            slot.write(bytes([lost]))
        with pytest.raises((errors.CorruptSnapshot, errors.StorageError), match="CRC-32C"):
            world.write(0, 10, number)
