# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank that is slow to persist holds back what the others overwrite in memory."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib

from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaReply,
    ArenaRequest,
    RestoreReply,
    RestoreRequest,
    SlotSealed,
)
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer.sidecar_client import SidecarClient
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.waiting import eventually

BYTES = (12 << 20, 1 << 10)
"""Of each rank's state: the first takes longer to persist."""
BANDWIDTH = 1 << 20
ARENA_BYTES = 28 << 20
"""No room for a replica beside the first rank's slots."""


class Trainer:
    """A rank whose state is its own."""

    def __init__(self, pod: checkpoint_pod.Pod, rank: int) -> None:
        self._rank, self._link = rank, SidecarClient(pod.settings.volume_path)
        self.arena = Arena(pod.settings.volume_path / names.ARENA_DIR / "0")
        layout = snapshot.plan([snapshot.Entry("a", "U8", (BYTES[rank],), 1)], {})
        self._head, self._length = snapshot.header(layout, {}), layout.length
        self._link.request(names.PATH_ARENA, ArenaRequest(0, layout.length), ArenaReply, timeout=30)

    def save(self, step: int) -> None:
        """Seal the step and say so."""
        state, current = identities.state(step), identities.round_id(1)
        facts = {"rank": self._rank, "world_size": 2, "state": state, "replicated": False}
        with self.arena.fill() as filling:
            os.pwrite(filling.descriptor, self._head + bytes([step]) * BYTES[self._rank], 0)
            filling.seal(length=self._length, **facts)
        told = SlotSealed(0, round=current, slot=filling.slot, snapshot_bytes=self._length, **facts)
        self._link.request(names.PATH_SEALED, told, Ack, timeout=30)

    def restore(self) -> tuple[int | None, str]:
        """In the next round."""
        asked = RestoreRequest(
            local_rank=0, rank=self._rank, world_size=2, round=identities.round_id(2)
        )
        reply = self._link.request(names.PATH_RESTORE, asked, RestoreReply, timeout=60)
        return reply.step, reply.source


def test_ranks_that_persist_at_different_speeds_keep_a_common_step(tmp_path):
    """Rank 1's file is written, rank 0's is not, and steps 2 and 3 are saved; rank 0 dies in its
    copy of step 3. What it falls back to, the step that it persists, rank 1 has still."""
    storage = tmp_path / "pvc"
    changes = {"checkpoint_bandwidth": BANDWIDTH, "arena_bytes": ARENA_BYTES}
    with checkpoint_pod.pods(tmp_path / "pods", 2, storage=storage, **changes) as pods:
        trainers = [Trainer(pod, rank) for rank, pod in enumerate(pods)]
        for trainer in trainers:
            trainer.save(1)
        folder = pathlib.Path(storage) / "demo" / "step-000000000001-1"
        eventually((folder / "rank-00001.safetensors").exists, what="rank 1's file")
        begun = lambda: [*folder.glob("rank-00000.safetensors.*.part")]  # noqa: E731 - of one line
        eventually(begun, what="rank 0's begin")
        for trainer in trainers:
            trainer.save(2)
        with trainers[0].arena.fill():  # Died in its copy.
            trainers[1].save(3)
        assert [seal.state.step for seal in trainers[0].arena.sealed()] == [1]
        assert not (folder / "rank-00000.safetensors").exists(), "rank 0 still persists"
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            restored = list(threads.map(Trainer.restore, trainers))
    assert restored == [(1, "memory")] * 2
