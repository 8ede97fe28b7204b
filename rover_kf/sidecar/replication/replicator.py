# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's half of replicas: copies of a partner pod's slots in this pod's memory.

One slot for each rank that is kept, beside the pod's own slots. While a newer step is copied over
an older one there is no replica; a pod that is lost in that moment costs a way back to storage.
A pod that is a world of its own may keep another world's slots: it asks that one's coordinator in
place of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TypeVar

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.replication import Replicated, ReplicateOrder, ReplicateRequest
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import SlotWrite
from rover_kf.checkpoint.storage.rate_limit import RateLimiter
from rover_kf.sidecar.http.peer_source import PeerSource
from rover_kf.sidecar.interfaces import EventRecorder, PeerClient
from rover_kf.sidecar.replication.rate_limited_source import RateLimitedSource
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import copy_into
from rover_kf.sidecar.tasks import acquire_in_thread

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_LONG_POLL_SECONDS = 10.0
_KEEPER_POLL_SECONDS = 4.0
"""Less than what peers.tell waits for."""

T = TypeVar("T")


class Replicator:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        peers: the coordinator and other sidecars.
        events: where refusals are told.
    """

    def __init__(
        self, settings: SidecarSettings, slots: PodSlots, peers: PeerClient, events: EventRecorder
    ) -> None:
        self._settings, self._slots = settings, slots
        self._peers, self._events = peers, events
        self._limiter = RateLimiter(settings.policy.checkpoint.replica_bandwidth)
        # A chief that is lost is not waited for: its successor may have another address.
        self._poll_seconds = _KEEPER_POLL_SECONDS if settings.keeps_host else _LONG_POLL_SECONDS
        self._last_warning: type[Exception] | None = None

    async def run(self) -> None:
        """Copy what the coordinator orders, for ever."""
        number = 0
        while True:
            request = ReplicateRequest(self._settings.pod, number, self._poll_seconds)
            try:
                order = await self._call_coordinator(names.PATH_REPLICATE, request, ReplicateOrder)
                known, number = number, order.number
                if number != known:
                    told = Replicated(self._settings.pod, number, await self._execute(order))
                    await self._call_coordinator(names.PATH_REPLICATED, told, Ack)
            except errors.RoverError as error:
                _log.warning("the coordinator orders no replicas: %s", error)
                if self._settings.keeps_host:
                    number = 0  # It may be another one, or may not have heard what was done.
                await asyncio.sleep(_RETRY_SECONDS)

    async def _call_coordinator(self, path: str, message: object, reply: type[T]) -> T:
        """The coordinator; the one whose world is kept here, where there is one."""
        settings = self._settings
        if not settings.keeps_host:
            return await self._peers.call_coordinator(path, message, reply)
        host = f"{settings.keeps_host}:{settings.port}"
        return await self._peers.post(host, path, message, reply)

    async def _execute(self, order: ReplicateOrder) -> str:
        """Do what is ordered; why it could not be done."""
        holdings = order.slots
        await asyncio.to_thread(self._slots.release_replicas, {h.rank for h in holdings})
        try:
            for holding in holdings:
                await self._copy(holding)
        except (errors.RoverError, OSError) as error:
            self._warn(error, holding)
            return str(error)
        return ""

    async def _copy(self, holding: SlotInfo) -> None:
        if await asyncio.to_thread(self._has_copy, holding):
            return
        arena = await asyncio.to_thread(
            self._slots.allocate_replica, holding.rank, holding.snapshot_bytes
        )
        source = PeerSource(self._peers, holding)
        if arena.sealed():
            await source.head()  # it is served: else the copy here, perhaps the last, went in vain
        take = functools.partial(arena.fill, only=0)
        with await acquire_in_thread(take, SlotWrite.close) as filling:
            await copy_into(RateLimitedSource(source, self._limiter), filling.descriptor)
            seal = filling.seal(
                state=holding.state,
                length=holding.snapshot_bytes,
                rank=holding.rank,
                world_size=holding.world_size,
                replicated=holding.replicated,
                pieces=holding.pieces,
            )
            arena.record.write_checksum(seal, holding.checksum)

    def _has_copy(self, holding: SlotInfo) -> bool:
        """Whether a copy is here already: a keeper that was started again asks anew."""
        arena = self._slots.arena(f"{names.REPLICA_PLACE}{holding.rank}")
        return any(
            (seal.state, seal.length) == (holding.state, holding.snapshot_bytes)
            and arena.record.read_checksum(seal) == holding.checksum
            for seal in arena.sealed()
        )  # fmt: skip

    def _warn(self, error: Exception, holding: SlotInfo) -> None:
        what = f"no replica of rank {holding.rank}"
        _log.info("%s: %s", what, error)
        if type(error) is not self._last_warning:  # each kind once, not at each step
            self._last_warning = type(error)
            then = f"if {holding.pod} is lost, the job goes back to storage"
            message = f"{self._settings.pod} keeps {what}: {error}; {then}"
            self._events.record(names.EVENT_CHECKPOINT_WARNING, message, warning=True)
