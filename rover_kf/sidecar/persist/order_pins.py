# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The slots that a persist order keeps unchanged: of a sealed state, or of one yet to come."""

from __future__ import annotations

import asyncio
import contextlib
import time
import typing
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.api.states import NO_STATE, State
from rover_kf.checkpoint.arena.slot_record import PinRequest, Seal
from rover_kf.sidecar.slots.slots import PodSlots

_IDLE_SECONDS, _SEAL_SECONDS = 2.0, 10.0
"""How long a state that is yet to come is waited for: without any save, as at training's end, and
in all."""
_GRACE_SECONDS = 5.0
"""How much longer saves spare its slot: a sidecar may get no core for a while."""
_POLL_SECONDS = 0.002


@typing.final
class OrderPins:
    """The pins of one order, in all slots of this pod.

    Args:
        slots: this pod's.
        local_ranks: that have slots.
    """

    def __init__(self, slots: PodSlots, local_ranks: Sequence[int]) -> None:
        self._slots, self.local_ranks = slots, local_ranks
        self._pins = contextlib.ExitStack()
        self._closed = False
        self.pinned: State | None = None
        """The state that every local rank has pinned."""

    def pin(self, state: State | None) -> None:
        """Pin a state in every local rank's slots, or in none: it cannot become complete."""
        seals = {rank: self._seal(rank, state) for rank in self.local_ranks}
        self._pin_all(seals, state)

    async def wait_sealed(self, first: State) -> str:
        """Pin each local rank's first state from that one on, as soon as it is sealed.

        Args:
            first: of the running round; no rank had sealed it when it was named.

        Returns:
            Why that failed; empty: it is pinned, the order has ended, or no rank is here.
        """
        deadline = time.monotonic() + _SEAL_SECONDS
        request = PinRequest(first, deadline + _GRACE_SECONDS)
        with contextlib.ExitStack() as requests:
            for rank in self.local_ranks:
                record = self._slots.arena(rank).record
                record.write_pin_request(request)
                requests.callback(record.write_pin_request, None)
            # Only now: whatever is sealed from here on is spared.
            if late := [state for state in map(self._newest, self.local_ranks) if state >= first]:
                return f"the order was late: {first} was named, and {max(late)} was sealed"
            newest, idle_until = NO_STATE, deadline
            while self.local_ranks and not self._closed:
                now, before = time.monotonic(), newest
                newest = max(map(self._newest, self.local_ranks))
                idle_until = now + _IDLE_SECONDS if newest > before else idle_until
                seals = {rank: request.select(self._sealed(rank)) for rank in self.local_ranks}
                if all(seals.values()):
                    return self._pin_first(seals)
                if now >= min(deadline, idle_until):
                    return f"{first} was named, and the newest save is still {newest}"
                await asyncio.sleep(_POLL_SECONDS)
        return ""

    def close(self) -> None:
        """Let go of the slots."""
        self._closed = True
        self._pins.close()

    def _pin_first(self, seals: Mapping[int, Seal | None]) -> str:
        states = {seal.state for seal in seals.values() if seal is not None}
        if len(states) > 1:
            return f"this pod's ranks saved different states: {', '.join(map(str, sorted(states)))}"
        self._pin_all(seals, *states)
        return "" if self.pinned else f"{max(states)} was overwritten before it was pinned"

    def _pin_all(self, seals: Mapping[int, Seal | None], state: State | None) -> None:
        with contextlib.ExitStack() as pins:
            for rank, seal in seals.items():
                if seal is None:
                    return
                try:
                    pins.enter_context(self._slots.arena(rank).pin(seal))
                except errors.CorruptSnapshot:
                    return
            self._pins, self.pinned = pins.pop_all(), state

    def _seal(self, local_rank: int, state: State | None) -> Seal | None:
        named = self._slots.stored_as
        return next((s for s in self._sealed(local_rank) if named(local_rank, s) == state), None)

    def _newest(self, local_rank: int) -> State:
        return max((seal.state for seal in self._sealed(local_rank)), default=NO_STATE)

    def _sealed(self, local_rank: int) -> Sequence[Seal]:
        return self._slots.arena(local_rank).sealed()
