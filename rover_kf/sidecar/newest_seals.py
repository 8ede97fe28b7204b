# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator is told of slots that it may know nothing of: as they are in its round."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import Sealed
from rover_kf.checkpoint.control import Seal
from rover_kf.sidecar.assignments import Assignment
from rover_kf.sidecar.slots import Slots, describe


def newest(slots: Slots) -> list[Sealed]:
    """Each local rank's newest slot, as of the round in which the rank was last. It blocks.

    Raises:
        OSError: slots cannot be looked at.
    """
    found: list[Sealed] = []
    for local_rank in slots.local_ranks():
        for seal in slots.arena(local_rank).sealed()[:1]:
            now = slots.assignments.get(local_rank)
            if now is not None and now.round != seal.round and _is_of(seal, now):
                found.append(restored(local_rank, seal, now))
            else:
                found.append(Sealed(local_rank, **describe(seal)))
    return found


def _is_of(seal: Seal, now: Assignment) -> bool:
    """Whether a rank goes on from it as it is; a restore that was cut off may have changed none."""
    of_any = seal.replicated or not seal.ranks
    return of_any or (seal.rank, seal.world_size) == (now.rank, now.world_size)


def restored(local_rank: int, seal: Seal, now: Assignment) -> Sealed:
    """A slot that a rank goes on from."""
    known = describe(seal) | dataclasses.asdict(now)
    return Sealed(local_rank, **known, restored=True, made_in=seal.round)
