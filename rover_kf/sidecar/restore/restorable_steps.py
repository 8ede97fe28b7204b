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
from rover_kf.api.checkpoints import Held
from rover_kf.api.replication import Kept, KeptRequest
from rover_kf.checkpoint.storage.storage_protocol import StoredCheckpoints
from rover_kf.sidecar.interfaces import Peers
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import Slots

_KEPT_SECONDS = 2.0


class HeldSteps:
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
        slots: Slots,
        store: StoredCheckpoints | None,
        peers: Peers,
    ) -> None:
        self._slots, self._store, self._peers = slots, store, peers
        self._keeper = f"{settings.keeper_host}:{settings.port}" if settings.keeper_host else ""

    async def find(self, local_rank: int) -> Held:
        """All of them.

        Raises:
            RoverError: one of the places cannot be looked at now: nobody knows what it holds.
        """
        found = await asyncio.to_thread(self._in_memory, local_rank)
        if self._keeper:
            found |= await self._kept()
        if self._store is not None:
            folders = await asyncio.to_thread(self._store.folders)
            found |= {folder.step for folder in folders}
        return Held(tuple(sorted(found)))

    def _in_memory(self, local_rank: int) -> set[int]:
        return {seal.step for seal in self._slots.arena(local_rank).sealed()}

    async def _kept(self) -> set[int]:
        request = KeptRequest(_KEPT_SECONDS)
        kept = await self._peers.tell(self._keeper, names.PATH_KEPT, request, Kept)
        if not kept.known:
            raise errors.CheckpointError(f"{self._keeper} still verifies the copy that it keeps")
        return {holding.step for holding in kept.holdings}
