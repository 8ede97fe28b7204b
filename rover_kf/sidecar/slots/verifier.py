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
from rover_kf.sidecar.slots.slots import PodSlots

_log = logging.getLogger(__name__)

_ArenaName = int | str


class SlotVerifier:
    """One a sidecar.

    Args:
        slots: this pod's.
    """

    def __init__(self, slots: PodSlots) -> None:
        self.slots = slots
        self._seals: dict[_ArenaName, Seal] = {}
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The pod's training processes have ended; returns at once."""
        self._running = asyncio.create_task(self._run_after(self._running))

    async def pop_verified(self, arena_name: _ArenaName) -> Seal | None:
        """The newest seal of a place if nobody could write to it since it was verified.

        Whoever takes it may write from now on: the next one gets None.
        """
        if self._running is not None:
            await asyncio.shield(self._running)
        return self._seals.pop(arena_name, None)

    def record(self, arena_name: _ArenaName, seal: Seal) -> None:
        """It was verified for who only looks, and nobody has written to it."""
        self._seals[arena_name] = seal

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._running is not None:
            await self._running

    async def _run_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        self._seals.clear()
        try:
            self._seals = await asyncio.to_thread(self._verify_newest)
        except OSError as error:
            _log.warning("slots are verified only when they are asked for: %s", error)

    def _verify_newest(self) -> dict[_ArenaName, Seal]:
        found: dict[_ArenaName, Seal] = {}
        places: list[_ArenaName] = [*self.slots.local_ranks(), *self.slots.replicas()]
        for place in places:
            for seal in self.slots.arena(place).sealed()[:1]:
                try:
                    self.slots.verify(place, seal)
                    found[place] = seal
                except errors.CorruptSnapshot as damage:  # noqa: PERF203 - a few
                    # The restore verifies it itself, and tells.
                    _log.info("%s", damage)
        return found
