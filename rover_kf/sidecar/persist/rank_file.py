# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's file on storage: a slot, or the rank's share of it where several ranks write."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api.checkpoints import Durable
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import metrics
from rover_kf.checkpoint.resharding.write_shares import share
from rover_kf.checkpoint.storage.rank_content import SlotContent, SlotWriter
from rover_kf.sidecar.slots.rank_assignments import Assignment
from rover_kf.sidecar.slots.slots import Slots
from rover_kf.sidecar.slots.sources import read_head


def write(
    storage: SlotWriter, slots: Slots, local_rank: int, seal: Seal, assignment: Assignment
) -> Durable:
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
        TornSnapshot: the slot no longer holds that step.
        StorageFailed: the storage refused, or took other bytes than were sealed, or the local rank
            was taken into another round meanwhile: the file is for nobody then, and the slot that
            it is written from may be what the restore has to fill.
    """

    def go_on() -> None:
        if slots.assignments.get(local_rank) not in (None, assignment):
            raise errors.StorageFailed(f"round {assignment.round} is over")

    folder = storage.folder(seal.step, assignment.round)
    arena = slots.arena(local_rank)
    with arena.pin(seal) as pin:
        head, path = read_head(pin.descriptor, seal.length), arena.slot_path(seal.slot)
        common, ranks = 0, 1
        content = SlotContent(path, seal.length, ((0, seal.length),), go_on=go_on)
        if assignment.world_size > 1:
            part = share(head, assignment.rank, assignment.world_size)
            common, ranks = part.common, part.ranks
            content = SlotContent(path, seal.length, part.ranges, part.header, go_on)
        file, seconds = storage.write_slot(folder, assignment.rank, content)
    if assignment.world_size == 1:
        _compare(file.checksum, slots.checksum(local_rank, seal), seal)
    return Durable(
        pod="",
        rank=file.rank,
        world_size=assignment.world_size,
        round=assignment.round,
        step=seal.step,
        replicated=seal.replicated or not ranks,
        file=file.name,
        file_bytes=file.length,
        checksum=file.checksum,
        pieces=seal.pieces,
        common=common,
        course=seal.round,
        metrics=metrics.of(head),
        storage_seconds=seconds,
        ranks=ranks,
    )


def _compare(written: int, sealed: int, seal: Seal) -> None:
    if written != sealed:
        raise errors.StorageFailed(
            f"step {seal.step}: CRC-32C {written:08x} was written, {sealed:08x} sealed"
        )
