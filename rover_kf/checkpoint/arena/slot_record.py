# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a slot holds: one small record a slot, valid whole or not at all.

The writer of a slot (trainer, or sidecar at restore) clears the record, copies, writes the record.
A record carries its own CRC, so a torn one counts as cleared. A cleared record keeps its sequence
number: numbers never repeat, so a checksum that was computed for one seal cannot be taken for
another's. Beside each record the sidecar leaves the CRC-32C that it computed for it, for the
sidecar that comes after a crash. Once for both slots there is a pin request: the sidecar names a
state that is yet to come, and saves spare the first slot from that state on until it is pinned.
Standard library only: it enters the user's image.

Memory order: readers and writers hold the slot's flock while they touch its bytes, and taking or
dropping a lock is a barrier on every machine; the record itself is read and written by system call.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
import zlib
from collections.abc import Sequence

from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.system import shared_volume

SLOTS = (0, 1)

_MAGIC, _VERSION = b"ROVERSL1", 2
_CHECKSUM_MAGIC = b"ROVERCRC"
_PIN_MAGIC = b"ROVERPIN"
_SEALED, _REPLICATED, _PIECES = 1, 2, 4
_RECORD = struct.Struct("<8sHHIQQQIIQQI")
_CHECKSUM_RECORD = struct.Struct("<8sIIQ")
_PIN_RECORD = struct.Struct("<8sQQQQd")
_CRC = struct.Struct("<I")
_STRIDE, _CHECKSUM_OFFSET, _PIN_OFFSET = 512, 256, 384
CONTROL_BYTES = _STRIDE * len(SLOTS)
"""Size of a control file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seal:
    """A slot's record."""

    slot: int
    sequence: int
    """Greater than that of every earlier record of this arena."""
    sealed: bool
    """False: the slot was cleared and holds nothing."""
    state: State = NO_STATE
    length: int = 0
    """Bytes of the snapshot."""
    rank: int = 0
    world_size: int = 1
    replicated: bool = True
    """This slot alone has all that any rank needs."""
    pieces: bool = False
    """All ranks' slots together have what a world of any size needs."""


@dataclasses.dataclass(frozen=True, slots=True)
class PinRequest:
    """A request to spare the first slot that is sealed with a state or a later one."""

    state: State
    deadline: float
    """Monotonic seconds, after which saves no longer heed it: its sidecar may have been killed."""

    def select(self, seals: Sequence[Seal]) -> Seal | None:
        """The slot to spare, of those that are sealed; None: there is none yet."""
        meant = (seal for seal in seals if seal.state >= self.state)
        return min(meant, key=lambda seal: seal.sequence, default=None)


class SlotRecord:
    """The records of one local rank's two slots.

    Args:
        path: the control file; made by the sidecar.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def read(self) -> tuple[Seal | None, ...]:
        """One entry a slot; None where nothing valid stands."""
        data = self._read_bytes()
        return tuple(_decode(slot, data[slot * _STRIDE :]) for slot in SLOTS)

    def write(self, seal: Seal) -> None:
        """Write a slot's record; the caller holds the slot's exclusive lock.

        Raises:
            OSError: the control file cannot be written.
        """
        flags = (
            (_SEALED if seal.sealed else 0)
            | (_REPLICATED if seal.replicated else 0)
            | (_PIECES if seal.pieces else 0)
        )
        state = seal.state
        body = _RECORD.pack(
            _MAGIC, _VERSION, seal.slot, flags, seal.sequence, state.step, seal.length,
            seal.rank, seal.world_size, state.round.generation, state.round.number, state.save,
        )  # fmt: skip
        self._write_bytes(body + _CRC.pack(zlib.crc32(body)), seal.slot * _STRIDE)

    def read_checksum(self, seal: Seal) -> int | None:
        """CRC-32C of the sealed bytes, if a sidecar computed it for this very seal."""
        data = self._read_bytes()[seal.slot * _STRIDE + _CHECKSUM_OFFSET :]
        body, crc = (
            data[: _CHECKSUM_RECORD.size],
            data[_CHECKSUM_RECORD.size : _CHECKSUM_RECORD.size + _CRC.size],
        )
        if len(body) < _CHECKSUM_RECORD.size or crc != _CRC.pack(zlib.crc32(body)):
            return None
        magic, slot, checksum, sequence = _CHECKSUM_RECORD.unpack(body)
        if (magic, slot, sequence) != (_CHECKSUM_MAGIC, seal.slot, seal.sequence):
            return None
        return int(checksum)

    def write_checksum(self, seal: Seal, checksum: int) -> None:
        """Leave the checksum of a seal beside its record."""
        body = _CHECKSUM_RECORD.pack(_CHECKSUM_MAGIC, seal.slot, checksum, seal.sequence)
        self._write_bytes(
            body + _CRC.pack(zlib.crc32(body)), seal.slot * _STRIDE + _CHECKSUM_OFFSET
        )

    def read_pin_request(self) -> PinRequest | None:
        """The pin request; None if there is none."""
        data = self._read_bytes()[_PIN_OFFSET:]
        end = _PIN_RECORD.size
        body, crc = data[:end], data[end : end + _CRC.size]
        if len(body) < end or crc != _CRC.pack(zlib.crc32(body)):
            return None
        _, generation, number, step, save, deadline = _PIN_RECORD.unpack(body)
        return PinRequest(State(RoundId(generation, number), step, save), deadline)

    def write_pin_request(self, request: PinRequest | None) -> None:
        """Write the pin request, or clear it; only the pod's sidecar does.

        Raises:
            OSError: the control file cannot be written.
        """
        data = bytes(_PIN_RECORD.size + _CRC.size)
        if request is not None:
            state = request.state
            body = _PIN_RECORD.pack(
                _PIN_MAGIC, state.round.generation, state.round.number, state.step, state.save,
                request.deadline,
            )  # fmt: skip
            data = body + _CRC.pack(zlib.crc32(body))
        self._write_bytes(data, _PIN_OFFSET)

    def _read_bytes(self) -> bytes:
        try:
            descriptor = shared_volume.open_file(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, CONTROL_BYTES, 0)
        finally:
            os.close(descriptor)

    def _write_bytes(self, data: bytes, offset: int) -> None:
        descriptor = shared_volume.open_file(self._path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)


def _decode(slot: int, data: bytes) -> Seal | None:
    body, crc = data[: _RECORD.size], data[_RECORD.size : _RECORD.size + _CRC.size]
    if len(body) < _RECORD.size or crc != _CRC.pack(zlib.crc32(body)):
        return None
    magic, version, own, flags, sequence, *rest = _RECORD.unpack(body)
    if (magic, version, own) != (_MAGIC, _VERSION, slot):
        return None
    step, length, rank, world, generation, number, save = rest
    return Seal(
        slot=slot,
        sequence=sequence,
        sealed=bool(flags & _SEALED),
        state=State(RoundId(generation, number), step, save),
        length=length,
        rank=rank,
        world_size=world,
        replicated=bool(flags & _REPLICATED),
        pieces=bool(flags & _PIECES),
    )
