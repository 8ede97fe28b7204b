# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""This pod's slots as the sidecar sees them: made, checked, described.

Used by checkpoints, persister and restorer. Every method blocks (memory, disk): call it in a
thread. All it knows is in the arena's files, so a sidecar that was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Set as AbstractSet
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaReply, ArenaRequest, SlotInfo
from rover_kf.api.states import State
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import checksum
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.rank_assignments import RankAssignments
from rover_kf.system import cpu_quota

_DIGITS = 9
"""Of a local rank or a rank, at most."""


class PodSlots:
    """The arenas of all local ranks.

    Args:
        settings: of the sidecar.
    """

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._root = settings.volume_path / names.ARENA_DIR
        self.assignments = RankAssignments(self._root)
        """Which rank each local rank is."""
        self._peer_slots_lock = threading.Lock()
        """Of what is kept of other pods: its room is not taken again while it is given up."""

    def allocate(self, request: ArenaRequest, *, rebuilding: bool = False) -> ArenaReply:
        """Make or grow a local rank's slots; copies give way where that makes room.

        Args:
            request: of the rank.
            rebuilding: whether replicas are still to be read.

        Raises:
            ArenaTooSmall: they do not fit.
            CheckpointError: they do not fit beside what is still to be read.
            InputError: the request makes no sense.
        """
        if request.local_rank < 0 or request.slot_bytes < 0:
            raise errors.InputError(f"{request} has a negative number")
        place, size = request.local_rank, request.slot_bytes
        most = self._settings.arena_bytes
        try:
            arena = arena_allocation.allocate(self._root, place, size, max_bytes=most)
        except errors.ArenaTooSmall:
            gone = frozenset(self.replicas())
            if not gone or (rebuilding and self._settings.policy.checkpoint.path is None):
                raise  # nobody could go on without them
            if not arena_allocation.fits(self._root, place, size, max_bytes=most, without=gone):
                raise  # they would be given up in vain
            with self._peer_slots_lock:
                self.release_replicas(frozenset())
                if rebuilding:
                    # The next round takes what is on storage.
                    raise errors.CheckpointError(
                        f"slots of {size} bytes have no room beside the copies of other pods' "
                        "slots that the restore reads; these are given up, so that the next "
                        "attempt does without. Set the annotation "
                        f"{names.PREFIX}checkpoint.arena higher to go on from memory"
                    ) from None
                arena = arena_allocation.allocate(self._root, place, size, max_bytes=most)
        return ArenaReply(str(arena.directory), arena.slot_bytes())

    def allocate_replica(self, rank: int, slot_bytes: int) -> Arena:
        """Make or grow the one slot for another pod's rank.

        Raises:
            ArenaTooSmall: it does not fit beside this pod's own.
        """
        place = f"{names.REPLICA_PLACE}{rank}"
        most = self._settings.arena_bytes
        with self._peer_slots_lock:
            return arena_allocation.allocate(
                self._root, place, slot_bytes, max_bytes=most, slots=(0,)
            )

    def release_replicas(self, retained: AbstractSet[int]) -> None:
        """Give back the memory of all replicas but those of these ranks."""
        for place in self.replicas():
            if int(place.removeprefix(names.REPLICA_PLACE)) not in retained:
                self._delete(place)

    def replicas(self) -> tuple[str, ...]:
        """Places of the replicas in this pod."""
        prefix = names.REPLICA_PLACE
        found = (path.parent.name for path in self._root.glob(f"{prefix}*/control"))
        return tuple(sorted(name for name in found if _is_number(name.removeprefix(prefix))))

    def _delete(self, arena_name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another thread gives it back as well
            for path in (self._root / arena_name).iterdir():
                path.unlink(missing_ok=True)
            (self._root / arena_name).rmdir()

    def arena(self, arena_name: int | str) -> Arena:
        """The slots of a local rank, or of a replica, made or not."""
        return Arena(self._root / str(arena_name))

    def local_ranks(self) -> tuple[int, ...]:
        """Those that have slots."""
        found = (path.parent.name for path in self._root.glob("*/control"))
        return tuple(sorted(int(name) for name in found if _is_number(name)))

    def newest_stored_as(self, local_rank: int) -> State | None:
        """The newest state of a local rank, under the name that its round stores it by."""
        for seal in self.arena(local_rank).sealed()[:1]:
            return self.stored_as(local_rank, seal)
        return None

    def stored_as(self, local_rank: int, seal: Seal) -> State:
        """The name under which the running round stores a slot."""
        known = self.assignments.get(local_rank)
        return seal.state.restored_in(known.round) if known else seal.state

    def checksum(self, arena_name: int | str, seal: Seal) -> int:
        """CRC-32C of a sealed slot, computed once a seal.

        Raises:
            CorruptSnapshot: the slot no longer holds it.
        """
        arena = self.arena(arena_name)
        known = arena.record.read_checksum(seal)
        if known is not None:
            return known
        with arena.pin(seal) as pin:
            found = checksum.compute_crc(pin.descriptor, seal.length)
            arena.record.write_checksum(seal, found)
        return found

    def verify(self, arena_name: int | str, seal: Seal) -> int:
        """Compute a sealed slot's checksum anew and compare.

        Raises:
            CorruptSnapshot: it differs from what was computed after the seal.
        """
        arena = self.arena(arena_name)
        with arena.pin(seal) as pin:
            # While a restore is waited for nobody trains.
            found = checksum.compute_crc(
                pin.descriptor, seal.length, cpu_quota.threads_per_process(1)
            )
            known = arena.record.read_checksum(seal)
            if known is None:
                arena.record.write_checksum(seal, found)
            elif known != found:
                raise errors.CorruptSnapshot(
                    f"{seal.state} in {arena.slot_path(seal.slot)} has CRC-32C {found:08x}; "
                    f"{known:08x} was computed after the seal"
                )
        return found

    def holdings(
        self, arena_name: int | str, verified: Seal | None = None
    ) -> tuple[tuple[SlotInfo, ...], tuple[str, ...]]:
        """What a rank's or a replica's slots hold, and what was wrong with the others.

        The newest that is whole is verified; a damaged slot is cleared: it must be offered to
        nobody. An older one, which is seldom wanted, has the checksum of its seal, and is verified
        by whoever reads it.

        Args:
            arena_name: of the slots.
            verified: a seal that need not be verified again.
        """
        arena = self.arena(arena_name)
        found: list[SlotInfo] = []
        wrong: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # another thread gives a replica back
            for seal in arena.sealed():
                try:
                    known = found or seal == verified
                    value = (
                        self.checksum(arena_name, seal) if known else self.verify(arena_name, seal)
                    )
                    found.append(self._holding(arena_name, seal, value))
                except errors.CorruptSnapshot as damage:  # noqa: PERF203 - two slots
                    wrong.append(str(damage))
                    arena.discard(seal)
        return tuple(found), tuple(wrong)

    def _holding(self, arena_name: int | str, seal: Seal, crc: int) -> SlotInfo:
        replica = str(arena_name).startswith(names.REPLICA_PLACE)
        return SlotInfo(
            pod=self._settings.pod,
            address=self._settings.endpoint,
            local_rank=0 if replica else int(arena_name),
            replica=replica,
            node=self._settings.node,
            rank=seal.rank,
            world_size=seal.world_size,
            state=seal.state,
            replicated=seal.replicated,
            pieces=seal.pieces,
            snapshot_bytes=seal.length,
            checksum=crc,
        )


def _is_number(text: str) -> bool:
    # Who trains may make folders, too.
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def describe(seal: Seal) -> dict[str, Any]:
    """The record's facts as keyword arguments of Sealed."""
    return {
        "rank": seal.rank,
        "world_size": seal.world_size,
        "state": seal.state,
        "slot": seal.slot,
        "snapshot_bytes": seal.length,
        "replicated": seal.replicated,
        "pieces": seal.pieces,
    }
