# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's half of the check of replicas: sums of its ranks' tensors for the coordinator.

Off the training's path: one slot at a time, in a thread of low priority. A slot that is overwritten
meanwhile, a coordinator that does not answer cost this one check.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.replication import DigestAck, ReplicaDigest, TensorChecksum
from rover_kf.checkpoint import divergence
from rover_kf.sidecar.consistency import tensor_digests
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import PodSlots

_log = logging.getLogger(__name__)


class ReplicaDigester:
    """A worker that sends checksums of this pod's slots to the coordinator."""

    def __init__(self, settings: SidecarSettings, slots: PodSlots, peers: PeerClient) -> None:
        self._settings, self._slots, self._peers = settings, slots, peers
        self._lock = asyncio.Lock()
        self._running: dict[int, asyncio.Task[None]] = {}

    def begin(self, sealed: SlotSealed) -> None:
        """Check a slot in the background; this rank's last check is over, done or not.

        So it is on every rank: none waits for another that is at a later step.
        """
        before = self._running.get(sealed.local_rank)
        if before is not None:
            before.cancel()
        self._running[sealed.local_rank] = asyncio.create_task(self._digest(sealed))

    async def stop(self) -> None:
        """Give up what goes on."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    async def _digest(self, sealed: SlotSealed) -> None:
        told = ReplicaDigest(
            pod=self._settings.pod,
            rank=sealed.rank,
            world_size=sealed.world_size,
            state=sealed.state,
        )
        try:
            async with self._lock:
                sums = await asyncio.to_thread(self._tensor_sums, sealed)
        except (errors.CorruptSnapshot, OSError) as overwritten:
            _log.info("rank %d: %s is not checked: %s", told.rank, told.state, overwritten)
            await self._send(told)
            return
        if sums:
            found = divergence.combine_digests(sums)
            told = dataclasses.replace(told, tensors=len(sums), digest=found)
            if await self._send(told):
                await self._send(
                    dataclasses.replace(told, listing=divergence.condense_listing(sums))
                )

    def _tensor_sums(self, sealed: SlotSealed) -> tuple[TensorChecksum, ...]:
        arena = self._slots.arena(sealed.local_rank)
        for seal in arena.sealed():
            if (seal.slot, seal.state) == (sealed.slot, sealed.state):
                return tensor_digests.digest_slot(arena, seal)
        raise errors.CorruptSnapshot(f"slot {sealed.slot} no longer holds {sealed.state}")

    async def _send(self, digest: ReplicaDigest) -> bool:
        """Whether the listing is wanted."""
        try:
            path = names.PATH_REPLICA_DIGEST
            taken = await self._peers.call_coordinator(path, digest, DigestAck)
        except errors.RoverError as error:
            _log.info("the coordinator does not compare %s: %s", digest.state, error)
            return False
        return taken.send_listing
