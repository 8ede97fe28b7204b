# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Torn, cut and flipped bytes of checkpoints: an older one is restored, or an error says what is
wrong; never other bytes than were saved."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator

import pytest

from rover_kf import errors
from rover_kf.checkpoint.arena.slot_record import CONTROL_BYTES
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint.format.snapshot import LENGTH_BYTES
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states.synthetic_states import Form

_PAGE = 4096
_EVERY = 5
"""One byte of so many is flipped where all of a small file is gone through."""


@pytest.fixture
def memory():
    """A folder in memory."""
    with in_memory() as folder:
        yield folder


@pytest.fixture
def runner():
    """Of coroutines."""
    with running() as started:
        yield started


def _job(memory: pathlib.Path, runner: asyncio.Runner, form: Form) -> World:
    return World(memory / "pods", memory / "pvc", form, runner, keep=3)


def _two_lives(
    memory: pathlib.Path, runner: asyncio.Runner, form: Form
) -> tuple[CheckpointFolder, ...]:
    """Steps 1 and 2 of the first life and step 3 of the next one are on storage, memory is empty;
    their folders, oldest first."""
    first = _job(memory, runner, form)
    assert first.begin() == 1
    first.persist(1, 1)
    first.persist(2, 1)
    first.forget()
    second = _job(memory, runner, form)
    assert second.begin() == 2
    assert second.restore(2) == (2, 1)
    second.persist(3, 2)
    second.forget()
    return second.storage.complete_folders()


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << place % 8
    return bytes(changed)


def _damages(data: bytes) -> Iterator[bytes | None]:
    """What may become of a file: gone, empty, cut, grown, torn in its pages, a bit flipped; at its
    begin, in its header, in its data and at its end."""
    yield None
    yield b""
    yield data + b"\0"
    head = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    end = len(data) - 1
    in_header = (0, LENGTH_BYTES - 1, LENGTH_BYTES, LENGTH_BYTES + 20, head - 1)
    places = {place for place in (*in_header, head, (head + end) // 2, end) if place <= end}
    for place in sorted(places):
        yield data[:place]
        yield _flipped(data, place)
    for begin in {0, len(data) // 2 // _PAGE * _PAGE, end // _PAGE * _PAGE}:
        page = data[begin : begin + _PAGE]
        yield data[:begin] + bytes(len(page)) + data[begin + len(page) :]


def _put(path: pathlib.Path, data: bytes | None) -> None:
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_a_damaged_checkpoint_costs_a_step_and_is_named(memory, runner, kind):
    """Every file of the newest checkpoint in every damage: the one of the life before is restored,
    and a Warning names the file."""
    form = Form(kind)
    newest = _two_lives(memory, runner, form)[-1]
    count = 0
    for path in sorted(pathlib.Path(newest.location).iterdir()):
        good = path.read_bytes()
        for damaged in _damages(good):
            _put(path, damaged)
            world = _job(memory, runner, form)
            world.forget()
            world.begin()
            assert world.restore(3) == (2, 1)
            # Without a manifest it is no checkpoint, and nobody says that it was one.
            if damaged is not None or path.suffix != ".json":
                (warning,) = world.warnings()
                assert f"{newest.name} cannot be restored" in warning
                assert path.name in warning
            count += 1
        path.write_bytes(good)
    world.forget()
    assert _job(memory, runner, form).restore(4) == (3, 2)
    print(f"{count} damages")
    assert count > 3 * 15


def test_any_flipped_byte_of_a_manifest_is_seen(memory, runner):
    """One in five of all bytes: the older checkpoint is restored."""
    form = Form("replicated")
    newest = _two_lives(memory, runner, form)[-1]
    path = pathlib.Path(newest.manifest_location)
    good = path.read_bytes()
    for place in range(0, len(good), _EVERY):
        path.write_bytes(_flipped(good, place))
        world = _job(memory, runner, form)
        world.forget()
        assert world.restore(3) == (2, 1), place
        assert len(world.warnings()) == 1
    print(f"{place // _EVERY + 1} flips")


@pytest.mark.parametrize("kind", ["replicated", "own"])
def test_with_nothing_good_left_nobody_begins_anew(memory, runner, kind):
    """The checkpoints are damaged one after the other, newest first: each costs a step; with none
    left restore is an error that says so, and all files stay for a person to look at."""
    form = Form(kind)
    folders = _two_lives(memory, runner, form)
    for number, folder in enumerate(reversed(folders)):
        expected = (3 - number, 2 if number == 0 else 1)
        world = _job(memory, runner, form)
        world.forget()
        assert world.restore(3 + number) == expected
        assert len(world.warnings()) == number
        path = pathlib.Path(folder.location) / "rank-00001.safetensors"
        path.write_bytes(_flipped(path.read_bytes(), 1000))
    before = sorted(world.storage.root.rglob("*"))
    world = _job(memory, runner, form)
    world.forget()
    with pytest.raises(errors.CheckpointError, match=r"none of the 3 .* can be restored") as error:
        world.restore(9)
    assert "rank-00001.safetensors has CRC-32C" in str(error.value)
    assert len(world.warnings()) == 3
    assert all(slots.arena(0).sealed() == () for slots in world.slots)
    assert sorted(world.storage.root.rglob("*")) == before
    path.write_bytes(_flipped(path.read_bytes(), 1000))
    assert _job(memory, runner, form).restore(10) == (1, 1)


@pytest.mark.parametrize("kind", ["sharded", "own"])
def test_a_damaged_slot_costs_a_step_and_is_named(memory, runner, kind):
    """Step 4 is in memory alone, and one rank's slot is damaged: all go back to step 3 on storage,
    though the other rank still has its part of step 4."""
    form = Form(kind)
    _two_lives(memory, runner, form)
    length = len(form.bytes_of(4, 2, 1))
    for place in (0, LENGTH_BYTES + 1, length // 2, length - 1):
        world = _job(memory, runner, form)
        world.forget()
        world.save(4, 2)
        slots = world.slots[1]
        (seal,) = slots.arena(0).sealed()
        slots.checksum(0, seal)
        with slots.arena(0).slot_path(seal.slot).open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        assert world.restore(3) == (3, 2)
        (warning,) = world.warnings()
        assert "step 4" in warning


def test_any_flipped_byte_of_a_slots_records_is_seen(memory, runner):
    """One in five of all bytes: the record counts or it does not; never other bytes, never an
    older step than the other slot's."""
    form = Form("own", all_rows=2)
    _two_lives(memory, runner, form)
    found = set()
    for place in range(0, CONTROL_BYTES, _EVERY):
        world = _job(memory, runner, form)
        world.forget()
        world.save(4, 2)
        world.save(5, 2)
        path = world.slots[0].arena(0).directory / "control"
        path.write_bytes(_flipped(path.read_bytes(), place))
        found.add(world.restore(3))
    print(f"{place // _EVERY + 1} flips")
    assert found == {(4, 2), (5, 2)}
