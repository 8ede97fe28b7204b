# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One local rank's two slots: filling one, pinning one, and never losing the last whole one.

Used by the trainer (fill), by the sidecar (pin to persist or serve, fill at restore); the sidecar
makes the files (rover_kf.checkpoint.arena.arena_allocation). Standard library only: it enters the
user's image.

Exclusion is by flock on the slot file, which the kernel drops with its process, however that ends.
Each filling or pin opens the file anew: a child forked earlier (a data loader's worker) must not
hold the lock of a dead parent.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import pathlib
import time
import typing
from collections.abc import Sequence
from types import TracebackType

from rover_kf import errors
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.slot_record import SLOTS, Seal, SlotRecord
from rover_kf.system import shared_volume

_RETRY_SECONDS = 0.0005


@typing.final
class SlotWrite:
    """A slot that this process alone may write; its record is cleared until it is sealed.

    Leaving the context without ``seal`` leaves the slot empty, as a crash would.
    """

    def __init__(self, arena: Arena, slot: int, descriptor: int, sequence: int) -> None:
        self.slot = slot
        self.descriptor = descriptor
        """Of the slot's file, for reading and writing."""
        self.path = arena.slot_path(slot)
        self._record = arena.record
        self._sequence = sequence

    def seal(
        self,
        *,
        state: State,
        length: int,
        rank: int,
        world_size: int,
        replicated: bool,
        pieces: bool = False,
    ) -> Seal:
        """Say that the slot's first ``length`` bytes are the whole snapshot of ``state``."""
        seal = Seal(
            slot=self.slot,
            sequence=self._sequence,
            sealed=True,
            state=state,
            length=length,
            rank=rank,
            world_size=world_size,
            replicated=replicated,
            pieces=pieces,
        )
        self._record.write(seal)
        return seal

    def close(self) -> None:
        """Drop the lock; what was sealed stays."""
        _unlock(self.descriptor)

    def __enter__(self) -> SlotWrite:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@typing.final
@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """A sealed slot that nobody overwrites while the pin lives."""

    seal: Seal
    descriptor: int
    """Of the slot's file, for reading."""

    def close(self) -> None:
        """Let go of the slot."""
        _unlock(self.descriptor)

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Arena:
    """The slots of one local rank.

    Args:
        directory: ``$ROVER_HOME/arena/<local rank>``.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.record = SlotRecord(directory / "control")

    def slot_path(self, slot: int) -> pathlib.Path:
        """The slot's file."""
        return self.directory / f"slot-{slot}"

    def slot_bytes(self, slots: Sequence[int] = SLOTS) -> int:
        """Capacity of the smaller slot; 0 before the sidecar made them."""
        try:
            return min(self.slot_path(slot).stat().st_size for slot in slots)
        except FileNotFoundError:
            return 0

    def sealed(self) -> tuple[Seal, ...]:
        """Records of slots that hold a whole snapshot, newest first."""
        found = [seal for seal in self.record.read() if seal is not None and seal.sealed]
        return tuple(sorted(found, key=lambda seal: -seal.sequence))

    def pin(self, seal: Seal) -> Pin:
        """Keep a sealed slot from being overwritten, from now on.

        Raises:
            CorruptSnapshot: the slot no longer holds that snapshot.
        """
        descriptor = _open(self.slot_path(seal.slot), os.O_RDONLY)
        if not _lock(descriptor, fcntl.LOCK_SH) or seal not in self.sealed():
            os.close(descriptor)
            message = f"{seal.state} is no longer in slot {seal.slot}; a newer one replaces it"
            raise errors.CorruptSnapshot(message)
        return Pin(seal, descriptor)

    def fill(self, *, only: int | None = None, timeout_seconds: float = 60.0) -> SlotWrite:
        """Take a slot to write into and clear its record.

        The newest sealed slot is taken only if the other one is sealed, too, and pinned: then a
        crash in mid-copy falls back to the pinned step. Otherwise waits until a pin is gone. A slot
        that a pin request means counts as pinned.

        Args:
            only: take this slot, whatever it holds; None: as said above.
            timeout_seconds: how long to wait for a pin.

        Raises:
            CheckpointError: both slots stayed pinned for ``timeout_seconds``.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            for slot in self._candidates() if only is None else (only,):
                descriptor = _open(self.slot_path(slot), os.O_RDWR)
                if _lock(descriptor, fcntl.LOCK_EX):
                    return self._clear(slot, descriptor)
                os.close(descriptor)
            if time.monotonic() > deadline:
                message = (
                    f"both slots of {self.directory} have been read for {timeout_seconds:g} s; "
                    "is the sidecar stopped?"
                )
                raise errors.CheckpointError(message)
            time.sleep(_RETRY_SECONDS)

    def discard(self, seal: Seal, *, timeout_seconds: float = 60.0) -> None:
        """Clear a sealed slot whose step must not be restored any more; waits for its pins.

        Raises:
            CheckpointError: it stayed pinned for ``timeout_seconds``.
        """
        deadline = time.monotonic() + timeout_seconds
        descriptor = _open(self.slot_path(seal.slot), os.O_RDWR)
        while not _lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(descriptor)
                message = f"slot {seal.slot} of {self.directory} stays pinned; it must be cleared"
                raise errors.CheckpointError(message)
            time.sleep(_RETRY_SECONDS)
        if seal in self.sealed():
            self._clear(seal.slot, descriptor).close()
        else:
            _unlock(descriptor)

    def make_newest(self, seal: Seal) -> Seal:
        """Make a sealed slot the newest one, while nobody saves; as it is now.

        Raises:
            CorruptSnapshot: the slot no longer holds that snapshot.
        """
        with self.pin(seal):
            checksum = self.record.read_checksum(seal)
            newest = max(found.sequence for found in self.record.read() if found is not None)
            renewed = dataclasses.replace(seal, sequence=newest + 1)
            self.record.write(renewed)
            if checksum is not None:
                self.record.write_checksum(renewed, checksum)
        return renewed

    def _candidates(self) -> tuple[int, ...]:
        sealed = self.sealed()
        if not sealed:
            return SLOTS
        other = 1 - sealed[0].slot
        slots = (other, sealed[0].slot) if len(sealed) == len(SLOTS) else (other,)
        request = self.record.read_pin_request()
        if request is None or time.monotonic() > request.deadline:
            return slots
        spared = request.select(sealed)
        return tuple(slot for slot in slots if spared is None or slot != spared.slot)

    def _clear(self, slot: int, descriptor: int) -> SlotWrite:
        known = [seal.sequence for seal in self.record.read() if seal is not None]
        sequence = max(known, default=0) + 1
        try:
            self.record.write(Seal(slot=slot, sequence=sequence, sealed=False))
        except OSError:
            _unlock(descriptor)
            raise
        return SlotWrite(self, slot, descriptor, sequence + 1)


def _open(path: pathlib.Path, flags: int) -> int:
    try:
        return shared_volume.open_file(path, flags)
    except FileNotFoundError:
        raise
    except OSError as strange:
        raise errors.CorruptSnapshot(f"{path} is no slot: {strange.strerror}") from strange


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int) -> None:
    # Explicitly: closing would leave the lock with a child that was forked meanwhile.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
