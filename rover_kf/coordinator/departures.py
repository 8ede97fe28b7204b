# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that leave with state that nobody else has: they stay until the others have taken it."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.membership import TakenRequest
from rover_kf.api.status import Acknowledged
from rover_kf.coordinator.commit.sealed_steps import SealAccount
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.long_poll import LongPoll


class Leavers:
    """One a coordinator.

    Args:
        seals: what ranks have told of their slots.
        others: whether those who are left could go on.
    """

    def __init__(self, seals: SealAccount, others: Callable[[], bool]) -> None:
        self._seals, self._others = seals, others
        self._poll = LongPoll()

    def routes(self) -> list[web.RouteDef]:
        """What launchers post."""
        return [web.post(names.PATH_TAKEN, self._on_taken)]

    def tick(self) -> None:
        """Now and then; what they wait for has no moment of its own."""
        self._poll.notify()

    async def _on_taken(self, request: web.Request) -> web.Response:
        asked = await read(request, TakenRequest)

        def over() -> bool | None:
            return not self._others() or self._seals.is_whole_after(asked.round) or None

        if await self._poll.answer(over, asked.timeout_seconds):
            return reply(Acknowledged())
        reason = f"no round after {asked.round} has gone on yet"
        return reply(Acknowledged(done=False, reason=reason))
