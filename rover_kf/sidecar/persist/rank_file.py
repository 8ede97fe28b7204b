# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's file on storage: a slot, or the rank's share of it where several ranks write."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api.checkpoints import RankPersisted
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import checksum, metrics
from rover_kf.checkpoint.resharding.write_shares import plan_share
from rover_kf.checkpoint.storage.rank_content import SlotContent, SlotFileWriter
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import read_header


def write_rank_file(
    storage: SlotFileWriter,
    slots: PodSlots,
    local_rank: int,
    seal: Seal,
    assignment: RankAssignment,
) -> RankPersisted:
    """Write it; safe when it returns. Blocks.

    Args:
        storage: the job's.
        slots: this pod's.
        local_rank: whose slot.
        seal: of the slot.
        assignment: what the local rank is in the running round. The file goes there, not where the
            seal's round would put it: a writer that was left behind in an older round has a folder
            of its own and cannot touch what this round makes.

    Returns:
        The report, without the pod and the seconds of all.

    Raises:
        CorruptSnapshot: the slot no longer holds that step.
        StorageError: the storage refused, or took other bytes than were sealed, or the local rank
            was taken into another round meanwhile: the file is for nobody then, and the slot that
            it is written from may be what the restore has to fill.
    """

    def check_cancelled() -> None:
        if slots.assignments.get(local_rank) not in (None, assignment):
            raise errors.StorageError(f"round {assignment.round} is over")

    state = seal.state.restored_in(assignment.round)
    folder = storage.folder(state)
    arena = slots.arena(local_rank)
    with arena.pin(seal) as pin:
        head, path = read_header(pin.descriptor, seal.length), arena.slot_path(seal.slot)
        common = 0
        content = SlotContent(
            path, seal.length, ((0, seal.length),), check_cancelled=check_cancelled
        )
        if assignment.world_size > 1:
            part = plan_share(head, assignment.rank, assignment.world_size)
            common = part.replicated_crc
            content = SlotContent(path, seal.length, part.ranges, part.header, check_cancelled)
        file, seconds = storage.write_slot(folder, assignment.rank, content)
        # Of a larger world a share is written: only the whole slot can be compared with its seal.
        alone = assignment.world_size == 1
        crc = file.checksum if alone else checksum.compute_crc(pin.descriptor, seal.length)
    _check_crc(crc, slots.checksum(local_rank, seal), seal)
    return RankPersisted(
        pod="",
        rank=file.rank,
        world_size=assignment.world_size,
        state=state,
        origin=seal.state,
        replicated=seal.replicated,
        file=file.name,
        file_bytes=file.length,
        checksum=file.checksum,
        pieces=seal.pieces,
        replicated_crc=common,
        metrics=metrics.read_metrics(head),
        storage_seconds=seconds,
    )


def _check_crc(written: int, sealed: int, seal: Seal) -> None:
    if written != sealed:
        raise errors.StorageError(
            f"{seal.state}: CRC-32C {written:08x} was written, {sealed:08x} sealed"
        )
