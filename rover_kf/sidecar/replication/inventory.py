# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tells who asks which slots of other pods this one keeps, each verified before it is offered."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.replication import StoredReplicas, StoredReplicasRequest
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.interfaces import EventRecorder
from rover_kf.sidecar.slots.slots import PodSlots

_Collected = tuple[tuple[SlotInfo, ...], tuple[str, ...]]


class ReplicaInventory:
    """One a sidecar.

    Args:
        slots: this pod's.
        events: where damages are told.
    """

    def __init__(self, slots: PodSlots, events: EventRecorder) -> None:
        self._slots, self._events = slots, events
        self._collecting: asyncio.Task[_Collected] | None = None

    def routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        return [web.post(names.PATH_KEPT, self._on_kept)]

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._collecting is not None:
            await asyncio.wait({self._collecting})

    async def _on_kept(self, request: web.Request) -> web.Response:
        asked = await read(request, StoredReplicasRequest)
        if self._collecting is None:
            self._collecting = asyncio.create_task(asyncio.to_thread(self._collect))
        looking = self._collecting
        done, _ = await asyncio.wait({looking}, timeout=asked.timeout_seconds)
        if not done:
            return reply(StoredReplicas(verified=False))
        if self._collecting is looking:
            self._collecting = None  # who asks next gets what is there then
        holdings, damages = looking.result()
        for damage in damages:
            self._events.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        return reply(StoredReplicas(verified=True, slots=holdings))

    def _collect(self) -> _Collected:
        found: list[SlotInfo] = []
        wrong: list[str] = []
        for place in self._slots.replicas():
            holdings, damages = self._slots.holdings(place)
            found.extend(holdings)
            wrong.extend(damages)
        return tuple(found), tuple(wrong)
