# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a process that writes the arena, at random instants: a whole sealed step is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from tests.support.pods.checkpoint_world import in_memory
from tests.support.waiting import eventually

KILLS, SLOT_BYTES, SEED = 40, 8 << 20, 20261121

WRITER = f"""
import mmap, os, pathlib, sys
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import SLOTS

arena = Arena(pathlib.Path(sys.argv[1]))
step = max((seal.state.step for seal in arena.sealed()), default=0)
layout = snapshot.plan([snapshot.Entry("a", "U8", ({SLOT_BYTES} - 65536,), 1)], {{}})
maps = []
for slot in SLOTS:
    descriptor = os.open(arena.slot_path(slot), os.O_RDWR)
    maps.append(mmap.mmap(descriptor, arena.slot_bytes()))
print("ready", flush=True)
while True:
    step += 1
    with arena.fill() as filling:
        view = memoryview(maps[filling.slot])
        head = snapshot.header(layout, {{"step": str(step)}})
        view[:len(head)] = head
        piece = bytes([step % 251]) * 4096
        for begin in range(layout.data_begin, layout.length, 4096):
            rest = min(4096, layout.length - begin)
            view[begin:begin + rest] = piece[:rest]
        filling.seal(state=State(RoundId(0, 1), step), length=layout.length, rank=0, world_size=1,
                     replicated=True)
"""


def _state_of(arena: Arena) -> tuple[int, int]:
    """Newest sealed step, after checking every byte of all that is sealed; and how many are."""
    seals = arena.sealed()
    for seal in seals:
        with arena.pin(seal) as pin:
            data = os.pread(pin.descriptor, seal.length, 0)
        found = snapshot.read(data)
        place = found.tensors["a"]
        assert found.metadata["step"] == str(seal.state.step)
        assert data[place.begin : place.end] == bytes([seal.state.step % 251]) * (
            place.end - place.begin
        )
    return max((seal.state.step for seal in seals), default=0), len(seals)


@pytest.fixture
def memory():
    """A folder in memory."""
    with in_memory() as folder:
        yield folder


def test_a_writer_killed_at_any_instant_leaves_a_whole_step(memory):
    """After each of the kills the arena has a sealed step, whole, not older than the last one."""
    chance = random.Random(SEED)
    arena = arena_allocation.allocate(memory, 0, SLOT_BYTES, max_bytes=4 * SLOT_BYTES)
    newest, torn = 0, 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(arena.directory)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        if not newest:
            eventually(arena.sealed, what="a first seal")
        end = time.monotonic() + chance.uniform(0.0, 0.03)
        while time.monotonic() < end:
            pass  # An instant, not a wait: the writer runs on the other core.
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        step, whole = _state_of(arena)
        assert step >= newest > 0 or newest == 0 < step
        newest, torn = step, torn + (whole == 1)
    print(f"{KILLS} kills, {torn} in mid-copy, {newest} steps sealed")
    assert torn > 0
