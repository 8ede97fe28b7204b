# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's half of replicas: copies of a partner pod's slots in this pod's memory.

One slot for each rank that is kept, beside the pod's own slots. While a newer step is copied over
an older one there is no replica; a pod that is lost in that moment costs a way back to storage.
"""

from __future__ import annotations

import asyncio
import logging

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import Holding, Replicated, ReplicateOrder, ReplicateRequest
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint.bandwidth import Cap
from rover_kf.sidecar.capped_source import CappedSource
from rover_kf.sidecar.peer_source import PeerSource
from rover_kf.sidecar.seams import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots import Slots
from rover_kf.sidecar.sources import copy_into

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_LONG_POLL_SECONDS = 10.0


class Replicas:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        peers: the coordinator and other sidecars.
        story: where refusals are told.
    """

    def __init__(self, settings: SidecarSettings, slots: Slots, peers: Peers, story: Story) -> None:
        self._settings, self._slots = settings, slots
        self._peers, self._story = peers, story
        self._cap = Cap(settings.checkpoint_replica_bandwidth)
        self._told: type[Exception] | None = None

    async def run(self) -> None:
        """Copy what the coordinator orders, for ever."""
        number = 0
        while True:
            request = ReplicateRequest(self._settings.pod, number, _LONG_POLL_SECONDS)
            try:
                order = await self._peers.ask_coordinator(
                    names.PATH_REPLICATE, request, ReplicateOrder
                )
                number = order.number
                if order.holdings:
                    told = Replicated(self._settings.pod, number, await self._keep(order.holdings))
                    await self._peers.ask_coordinator(names.PATH_REPLICATED, told, Acknowledged)
            except errors.RoverError as error:
                _log.warning("the coordinator orders no replicas: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _keep(self, holdings: tuple[Holding, ...]) -> str:
        """Copy the slots; why it could not be done."""
        await asyncio.to_thread(self._slots.forget_replicas, {h.rank for h in holdings})
        try:
            for holding in holdings:
                await self._copy(holding)
        except (errors.RoverError, OSError) as error:
            self._warn(error, holding)
            return str(error)
        return ""

    async def _copy(self, holding: Holding) -> None:
        arena = await asyncio.to_thread(
            self._slots.allocate_replica, holding.rank, holding.snapshot_bytes
        )
        with await asyncio.to_thread(arena.fill, only=0) as filling:
            source = CappedSource(PeerSource(self._peers, holding), self._cap)
            await copy_into(source, filling.descriptor)
            seal = filling.seal(
                step=holding.step,
                length=holding.snapshot_bytes,
                rank=holding.rank,
                world_size=holding.world_size,
                round_=holding.round,
                replicated=False,
                pieces=holding.pieces,
            )
            arena.control.write_checksum(seal, holding.checksum)

    def _warn(self, why: Exception, holding: Holding) -> None:
        _log.info("no replica of rank %d: %s", holding.rank, why)
        if type(why) is not self._told:  # each kind once, not at each step
            self._told = type(why)
            self._story.record(
                names.EVENT_CHECKPOINT_WARNING,
                f"{self._settings.pod} keeps no replica of rank {holding.rank}: {why}; if "
                f"{holding.pod} is lost, the job goes back to storage",
                warning=True,
            )
