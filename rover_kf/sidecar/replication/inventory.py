# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tells who asks which slots of other pods this one keeps, each verified before it is offered."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.checkpoints import Holding
from rover_kf.api.replication import Kept, KeptRequest
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.interfaces import Story
from rover_kf.sidecar.slots.slots import Slots

_Found = tuple[tuple[Holding, ...], tuple[str, ...]]


class KeptReplicas:
    """One a sidecar.

    Args:
        slots: this pod's.
        story: where damages are told.
    """

    def __init__(self, slots: Slots, story: Story) -> None:
        self._slots, self._story = slots, story
        self._looking: asyncio.Task[_Found] | None = None

    def routes(self) -> list[web.RouteDef]:
        """For the TCP port."""
        return [web.post(names.PATH_KEPT, self._on_kept)]

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._looking is not None:
            await asyncio.wait({self._looking})

    async def _on_kept(self, request: web.Request) -> web.Response:
        asked = await read(request, KeptRequest)
        if self._looking is None:
            self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        looking = self._looking
        done, _ = await asyncio.wait({looking}, timeout=asked.timeout_seconds)
        if not done:
            return reply(Kept(known=False))
        if self._looking is looking:
            self._looking = None  # who asks next gets what is there then
        holdings, damages = looking.result()
        for damage in damages:
            self._story.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        return reply(Kept(known=True, holdings=holdings))

    def _look(self) -> _Found:
        found: list[Holding] = []
        wrong: list[str] = []
        for place in self._slots.replicas():
            holdings, damages = self._slots.holdings(place)
            found.extend(holdings)
            wrong.extend(damages)
        return tuple(found), tuple(wrong)
