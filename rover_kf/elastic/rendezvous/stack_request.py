# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The order to send stacks, which goes to each running member with the answer to its next request.

Used by rendezvous.py only.
"""

from __future__ import annotations

from rover_kf.api.membership import WatchReply
from rover_kf.elastic.rendezvous.member import MemberPhase
from rover_kf.elastic.rendezvous.world import World


class StackRequest:
    """Who has still to be told.

    Args:
        world: whose members.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: set[str] = set()

    def begin(self) -> None:
        """Every member that runs shall send the stacks of its processes."""
        self._pending = {seat.member.pod for seat in self._world.members()}

    def send_pending(self) -> None:
        """Tell those whose request is there to be answered."""
        for pod in sorted(self._pending):
            seat = self._world.member_index.get(pod)
            if seat is None or seat.phase is not MemberPhase.RUNNING:
                self._pending.discard(pod)
            elif seat.ticket is not None:
                self._pending.discard(pod)
                order = WatchReply(action="stacks", drain_at=self._world.drain_at)
                self._world.reply(seat, order)
