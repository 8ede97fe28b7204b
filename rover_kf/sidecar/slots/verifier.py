# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots verified as soon as training processes have ended, before their successors ask for them.

From then on only sidecars write to a slot. Successors need their time to be forked and to build a
module; reading every byte meanwhile is time that they do not wait for.
"""

from __future__ import annotations

import asyncio
import logging

from rover_kf import errors
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.sidecar.slots.slots import Slots

_log = logging.getLogger(__name__)

_Place = int | str


class Examination:
    """One a sidecar.

    Args:
        slots: this pod's.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._found: dict[_Place, Seal] = {}
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The pod's training processes have ended; returns at once."""
        self._running = asyncio.create_task(self._after(self._running))

    async def take(self, place: _Place) -> Seal | None:
        """The newest seal of a place if nobody could write to it since it was verified.

        Whoever takes it may write from now on: the next one gets None.
        """
        if self._running is not None:
            await asyncio.shield(self._running)
        return self._found.pop(place, None)

    def keep(self, place: _Place, seal: Seal) -> None:
        """It was verified for who only looks, and nobody has written to it."""
        self._found[place] = seal

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._running is not None:
            await self._running

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        self._found.clear()
        try:
            self._found = await asyncio.to_thread(self._verified)
        except OSError as error:
            _log.warning("slots are verified only when they are asked for: %s", error)

    def _verified(self) -> dict[_Place, Seal]:
        found: dict[_Place, Seal] = {}
        places: list[_Place] = [*self.slots.local_ranks(), *self.slots.replicas()]
        for place in places:
            for seal in self.slots.arena(place).sealed()[:1]:
                try:
                    self.slots.verify(place, seal)
                    found[place] = seal
                except errors.TornSnapshot as damage:  # noqa: PERF203 - a few
                    # The restore verifies it itself, and tells.
                    _log.info("%s", damage)
        return found
