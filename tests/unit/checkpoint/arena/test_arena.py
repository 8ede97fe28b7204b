# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots: who may write which, what survives, how they grow."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time

import pytest

from rover_kf import errors
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import PinRequest, Seal, SlotRecord
from tests.support.states import identities
from tests.support.waiting import eventually

PAGE = 4096


@pytest.fixture
def arena(tmp_path) -> Arena:
    return arena_allocation.allocate(tmp_path / "arena", 0, PAGE, max_bytes=1 << 30)


def _seal(arena: Arena, step: int, content: bytes = b"") -> Seal:
    with arena.fill() as filling:
        os.pwrite(filling.descriptor, content, 0)
        return filling.seal(
            state=identities.state(step), length=len(content), rank=0, world_size=1, replicated=True
        )


def test_saves_alternate_and_the_newest_comes_first(arena):
    """Each save takes the slot of the older step; sequence numbers only grow."""
    seals = [_seal(arena, step) for step in (1, 2, 3)]
    assert [seal.slot for seal in seals] == [0, 1, 0]
    assert arena.sealed() == (seals[2], seals[1])
    assert seals[0].sequence < seals[1].sequence < seals[2].sequence


def test_a_filling_that_is_not_sealed_leaves_the_other_step(arena):
    """An error in mid-copy empties one slot; the other stays, and the next save avoids it."""
    first = _seal(arena, 1)
    _seal(arena, 2)
    with pytest.raises(RuntimeError), arena.fill():
        raise RuntimeError
    (left,) = arena.sealed()
    assert left.state.step == 2
    with arena.fill() as filling:
        assert filling.slot == first.slot


def test_a_pinned_step_is_not_overwritten_and_saving_goes_on(arena):
    """While step 1 is pinned, steps 3 and 4 go over step 2 and 3; nothing waits, nothing skips."""
    first = _seal(arena, 1, b"one")
    _seal(arena, 2)
    with arena.pin(first) as pin:
        third, fourth = _seal(arena, 3), _seal(arena, 4)
        assert third.slot == fourth.slot == 1 - first.slot
        assert os.pread(pin.descriptor, 3, 0) == b"one"
        assert arena.sealed() == (fourth, first)
    assert _seal(arena, 5).slot == first.slot


def test_saves_spare_the_first_step_that_a_pin_request_names(arena):
    """Steps 5 and later go over each other beside step 4, until the request is over."""
    for step in (1, 2):
        _seal(arena, step)
    arena.record.write_pin_request(PinRequest(identities.state(3), time.monotonic() + 600))
    seals = {step: _seal(arena, step) for step in (4, 5, 6, 7)}
    assert arena.sealed() == (seals[7], seals[4])
    arena.record.write_pin_request(PinRequest(identities.state(3), time.monotonic() - 1))
    last = _seal(arena, 8)
    assert arena.sealed() == (last, seals[7])
    arena.record.write_pin_request(PinRequest(identities.state(9), time.monotonic() + 600))
    arena.record.write_pin_request(None)
    assert arena.record.read_pin_request() is None
    for step in (9, 10, 11):
        _seal(arena, step)
    assert [seal.state.step for seal in arena.sealed()] == [11, 10]


def test_the_only_sealed_step_is_never_overwritten(arena):
    """With nothing else sealed, a save waits for the other slot's reader instead."""
    only = _seal(arena, 1)
    other = os.open(arena.slot_path(1 - only.slot), os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(errors.CheckpointError, match="sidecar"):
            arena.fill(timeout_seconds=0.05)
        assert arena.sealed() == (only,)
    finally:
        os.close(other)


def test_both_pinned_makes_a_save_wait_and_then_go_on(arena):
    """A save that finds both slots pinned is done as soon as one is free."""
    first, second = _seal(arena, 1), _seal(arena, 2)
    pins = [arena.pin(first), arena.pin(second)]
    saved: list[Seal] = []
    thread = threading.Thread(target=lambda: saved.append(_seal(arena, 3)))
    thread.start()
    assert arena.sealed() == (second, first)
    pins[1].close()
    eventually(lambda: saved)
    thread.join()
    assert saved[0].slot == second.slot
    pins[0].close()


def test_a_pin_of_what_is_gone_is_refused(arena):
    """A seal that was replaced cannot be pinned; the message says what happened."""
    first = _seal(arena, 1)
    _seal(arena, 2)
    _seal(arena, 3)
    with pytest.raises(errors.CorruptSnapshot, match="step 1 of round 1 is no longer in slot 0"):
        arena.pin(first)


def test_discard_waits_for_pins_and_clears(arena):
    """A step of a course that was left disappears; a pin in use is waited for."""
    seal = _seal(arena, 1)
    with arena.pin(seal), pytest.raises(errors.CheckpointError, match="pinned"):
        arena.discard(seal, timeout_seconds=0.05)
    arena.discard(seal)
    arena.discard(seal)
    assert arena.sealed() == ()


def test_growth_keeps_the_sealed_step_and_old_mappings(arena, tmp_path):
    """A larger arena has the old bytes; asking for less changes nothing."""
    seal = _seal(arena, 1, b"kept")
    before = arena.slot_bytes()
    grown = arena_allocation.allocate(tmp_path / "arena", 0, before + 1, max_bytes=1 << 30)
    assert grown.slot_bytes() > before
    with grown.pin(seal) as pin:
        assert os.pread(pin.descriptor, 4, 0) == b"kept"
    again = arena_allocation.allocate(tmp_path / "arena", 0, PAGE, max_bytes=1 << 30)
    assert again.slot_bytes() == grown.slot_bytes()


def test_any_user_of_the_image_may_write(tmp_path):
    """Files are 0666 and folders 0777 whatever the umask: the image's user is unknown."""
    before = os.umask(0o077)
    try:
        arena = arena_allocation.allocate(tmp_path / "arena", 3, PAGE, max_bytes=1 << 30)
    finally:
        os.umask(before)
    for path in (*arena.directory.iterdir(), arena.directory, arena.directory.parent):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666), path


def test_what_does_not_fit_is_refused_with_the_annotation(tmp_path):
    """Numbers a slot, and the size of all slots to set; other ranks' slots count."""
    arena_allocation.allocate(tmp_path, 0, 4 << 20, max_bytes=20 << 20)
    with pytest.raises(errors.ArenaTooSmall) as refused:
        arena_allocation.allocate(tmp_path, 1, 7 << 20, max_bytes=20 << 20)
    assert refused.value.needed == 7 << 20
    assert refused.value.available == 6 << 20
    assert "rover-kf.io/checkpoint.arena to 22Mi" in str(refused.value)
    assert (
        arena_allocation.allocate(tmp_path, 1, 6 << 20, max_bytes=20 << 20).slot_bytes() == 6 << 20
    )


def test_a_full_volume_is_refused_not_sigbus(tmp_path):
    """posix_fallocate's ENOSPC becomes ArenaTooSmall and what was reserved is given back."""
    small = arena_allocation.allocate(tmp_path, 0, PAGE, max_bytes=1 << 40)
    _seal(small, 1, b"kept")
    free = os.statvfs(tmp_path)
    needed = free.f_bavail * free.f_frsize * 4
    with pytest.raises(errors.ArenaTooSmall, match=r"memory volume.*ENOSPC"):
        arena_allocation.allocate(tmp_path, 0, needed, max_bytes=1 << 60)
    assert small.sealed()[0].state.step == 1
    assert small.slot_path(0).stat().st_size < needed


def test_a_volume_with_room_for_one_slot_keeps_it(tmp_path, monkeypatch):
    """The first slot's growth is taken back: the error counts its room, and others may have it."""
    small = arena_allocation.allocate(tmp_path, 0, PAGE, max_bytes=1 << 40)
    _seal(small, 1, b"kept")
    before, reserve = small.slot_bytes(), os.posix_fallocate

    def refuse_the_second(descriptor, offset, length):
        if any(path.stat().st_size > before for path in map(small.slot_path, (0, 1))):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", refuse_the_second)
    with pytest.raises(errors.ArenaTooSmall, match="--shm-size") as refused:
        arena_allocation.allocate(tmp_path, 0, 2 << 20, max_bytes=1 << 60)
    assert "annotation" not in str(refused.value)
    assert [small.slot_path(slot).stat().st_size for slot in (0, 1)] == [before, before]
    assert small.sealed()[0].state.step == 1


def test_growth_keeps_contents_and_reserves_every_page(tmp_path):
    """What was sealed stays; no later touch can find the volume full."""
    arena = arena_allocation.allocate(tmp_path, 0, PAGE, max_bytes=1 << 30)
    _seal(arena, 1, b"kept")
    grown = arena_allocation.allocate(tmp_path, 0, arena.slot_bytes() + 1, max_bytes=1 << 30)
    with grown.pin(grown.sealed()[0]) as pin:
        assert os.pread(pin.descriptor, 4, 0) == b"kept"
    for slot in (0, 1):
        status = grown.slot_path(slot).stat()
        assert status.st_blocks * 512 >= status.st_size


def test_damaged_records_count_as_nothing(tmp_path):
    """Any flipped bit or truncation of the control file hides the record it hits, no other."""
    path = tmp_path / "control"
    path.write_bytes(bytes(1024))
    control = SlotRecord(path)
    seals = [
        Seal(slot=slot, sequence=7 + slot, sealed=True, length=9, state=identities.state(5, 2))
        for slot in (0, 1)
    ]
    for seal in seals:
        control.write(seal)
        control.write_checksum(seal, 0xDEADBEEF)
    assert control.read() == tuple(seals)
    assert control.read_checksum(seals[0]) == 0xDEADBEEF
    assert control.read_checksum(Seal(0, 8, sealed=True)) is None
    whole = path.read_bytes()
    hidden = 0
    for bit in range(0, 8 * 512, 7):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        first, second = control.read()
        assert second == seals[1]
        assert first in (None, seals[0])
        assert control.read_checksum(seals[0]) in (None, 0xDEADBEEF)
        hidden += first is None
    assert hidden >= 8 * 72 // 7
    for size in range(0, 600, 13):
        path.write_bytes(whole[:size])
        assert all(found in (None, seal) for found, seal in zip(control.read(), seals, strict=True))
    path.unlink()
    assert control.read() == (None, None)
