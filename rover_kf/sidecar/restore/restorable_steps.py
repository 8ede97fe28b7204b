# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which steps of a training process could still be restored, from wherever.

A step goes from memory to the pod that keeps a copy, and to storage, and leaves memory only then:
so memory is looked at first. On storage an unfinished checkpoint counts: it may be finished next.
"""

from __future__ import annotations

import asyncio

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestorableStepsReply
from rover_kf.api.replication import StoredReplicas, StoredReplicasRequest
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import PodSlots

_KEPT_SECONDS = 2.0


class RestorableStepFinder:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        store: the job's folder; None: memory only.
        peers: other sidecars.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        slots: PodSlots,
        store: StoredCheckpoints | None,
        peers: PeerClient,
    ) -> None:
        self._slots, self._store, self._peers = slots, store, peers
        self._keeper = f"{settings.keeper_host}:{settings.port}" if settings.keeper_host else ""

    async def find_steps(self, local_rank: int) -> RestorableStepsReply:
        """All of them.

        Raises:
            RoverError: one of the places cannot be looked at now: nobody knows what it holds.
        """
        found = await asyncio.to_thread(self._memory_steps, local_rank)
        if self._keeper:
            found |= await self._peer_copy_steps()
        if self._store is not None:
            folders = await asyncio.to_thread(self._store.folders)
            found |= {folder.step for folder in folders}
        return RestorableStepsReply(tuple(sorted(found)))

    def _memory_steps(self, local_rank: int) -> set[int]:
        return {seal.state.step for seal in self._slots.arena(local_rank).sealed()}

    async def _peer_copy_steps(self) -> set[int]:
        request = StoredReplicasRequest(_KEPT_SECONDS)
        kept = await self._peers.post(self._keeper, names.PATH_KEPT, request, StoredReplicas)
        if not kept.verified:
            raise errors.CheckpointError(f"{self._keeper} still verifies the copy that it keeps")
        return {holding.state.step for holding in kept.slots}
