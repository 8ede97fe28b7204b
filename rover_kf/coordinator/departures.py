# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that leave with state that nobody else has: they stay until the others have taken it."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.membership import StateHandedOverRequest
from rover_kf.api.status import Ack
from rover_kf.coordinator.commit.sealed_steps import SealedSteps
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.long_poll import LongPoll


class DepartingPods:
    """One a coordinator.

    Args:
        sealed_steps: what ranks have told of their slots.
        can_continue: whether those who are left could go on.
    """

    def __init__(self, sealed_steps: SealedSteps, can_continue: Callable[[], bool]) -> None:
        self._sealed_steps, self._can_continue = sealed_steps, can_continue
        self._poll = LongPoll()

    def routes(self) -> list[web.RouteDef]:
        """What launchers post."""
        return [web.post(names.PATH_TAKEN, self._on_handed_over)]

    def tick(self) -> None:
        """Now and then; what they wait for has no moment of its own."""
        self._poll.notify()

    async def _on_handed_over(self, request: web.Request) -> web.Response:
        asked = await read(request, StateHandedOverRequest)

        def over() -> bool | None:
            return (
                not self._can_continue()
                or self._sealed_steps.is_complete_after(asked.round)
                or None
            )

        if await self._poll.wait(over, asked.timeout_seconds):
            return reply(Ack())
        reason = f"no round after {asked.round} has gone on yet"
        return reply(Ack(done=False, reason=reason))
