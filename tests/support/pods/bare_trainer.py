# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training process as its sidecar sees it, without torch."""

from __future__ import annotations

import os

from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaReply,
    ArenaRequest,
    RestoreReply,
    RestoreRequest,
    Sealed,
    WaitRequest,
    Wanted,
)
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.trainer.sidecar_client import Link
from tests.support.pods import checkpoint_pod


class Trainer:
    """The messages of a training process.

    Args:
        pod: whose sidecar it talks to.
        rank: its own.
        world: number of ranks.
        local: its number in the pod.
    """

    def __init__(
        self, pod: checkpoint_pod.Pod, rank: int = 0, world: int = 1, local: int = 0
    ) -> None:
        self.link = Link(pod.settings.home)
        self.rank, self.world, self.local = rank, world, local
        self.round = 1
        self.arena = Arena(pod.settings.home / "arena" / str(local))

    def allocate(self, size: int) -> ArenaReply:
        asked = ArenaRequest(self.local, size)
        return self.link.ask(names.PATH_ARENA, asked, ArenaReply, timeout=30)

    def save(
        self, step: int, content: bytes, *, replicated: bool = True, pieces: bool = False
    ) -> Seal:
        self.allocate(len(content))
        with self.arena.fill() as filling:
            os.pwrite(filling.descriptor, content, 0)
            seal = filling.seal(
                step=step, length=len(content), rank=self.rank, world_size=self.world,
                round_=self.round, replicated=replicated, pieces=pieces,
            )  # fmt: skip
        place = (self.local, self.rank, self.world, self.round)
        message = Sealed(*place, step, seal.slot, len(content), replicated, pieces=pieces)
        self.link.ask(names.PATH_SEALED, message, Acknowledged, timeout=30)
        return seal

    def wait(self, step: int, level: str) -> Acknowledged:
        asked = WaitRequest(step, level, 50)
        return self.link.ask(names.PATH_WAIT, asked, Acknowledged, timeout=60)

    def restore(self, round_: int, wanted: tuple[Wanted, ...] = ()) -> RestoreReply:
        self.round = round_
        request = RestoreRequest(self.local, self.rank, self.world, round_, wanted)
        return self.link.ask(names.PATH_RESTORE, request, RestoreReply, timeout=60)

    def flush(self) -> Acknowledged:
        return self.link.ask(names.PATH_FLUSH, Acknowledged(), Acknowledged, timeout=60)
