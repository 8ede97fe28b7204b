# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training process as its sidecar sees it, without torch."""

from __future__ import annotations

import os
import secrets

from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaReply,
    ArenaRequest,
    RequestedBoxes,
    RestoreReply,
    RestoreRequest,
    SlotSealed,
    WaitRequest,
)
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.trainer.sidecar_client import SidecarClient
from tests.support.pods import checkpoint_pod
from tests.support.states import identities


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
        self.link = SidecarClient(pod.settings.volume_path)
        self.rank, self.world, self.local = rank, world, local
        self.round, self.life = 1, secrets.token_hex(4)
        self._saves: dict[tuple[int, int], int] = {}
        self.arena = Arena(pod.settings.volume_path / "arena" / str(local))

    def state(self, step: int) -> State:
        """The newest save of a step in the round."""
        return identities.state(step, self.round, self._saves.get((self.round, step), 1))

    def allocate(self, size: int) -> ArenaReply:
        asked = ArenaRequest(self.local, size)
        return self.link.request(names.PATH_ARENA, asked, ArenaReply, timeout=30)

    def seal(
        self, step: int, content: bytes, *, replicated: bool = True, pieces: bool = False
    ) -> Seal:
        """Save a step; the sidecar does not hear of it."""
        self._saves[self.round, step] = self._saves.get((self.round, step), 0) + 1
        with self.arena.fill() as filling:
            os.pwrite(filling.descriptor, content, 0)
            return filling.seal(
                state=self.state(step), length=len(content), rank=self.rank,
                world_size=self.world, replicated=replicated, pieces=pieces,
            )  # fmt: skip

    def save(
        self, step: int, content: bytes, *, replicated: bool = True, pieces: bool = False
    ) -> Seal:
        self.allocate(len(content))
        seal = self.seal(step, content, replicated=replicated, pieces=pieces)
        place = (self.local, self.rank, self.world, seal.state.round, seal.state)
        message = SlotSealed(*place, seal.slot, len(content), replicated, pieces=pieces)
        self.link.request(names.PATH_SEALED, message, Ack, timeout=30)
        return seal

    def wait(self, step: int, level: str, seconds: float = 50) -> Ack:
        asked = WaitRequest(self.state(step), level, seconds)
        return self.link.request(names.PATH_WAIT, asked, Ack, timeout=60)

    def restore(self, round_: int, wanted: tuple[RequestedBoxes, ...] = ()) -> RestoreReply:
        self.round = round_
        request = RestoreRequest(
            self.local, self.rank, self.world, identities.round_id(round_), self.life, wanted
        )
        reply = self.link.request(names.PATH_RESTORE, request, RestoreReply, timeout=60)
        if reply.state is not None:
            self._saves[round_, reply.state.step] = reply.state.restored_in(reply.round).save
        return reply

    def flush(self) -> Ack:
        return self.link.request(names.PATH_FLUSH, Ack(), Ack, timeout=60)
