# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The order to send stacks, which goes to each running member with the answer to its next request.

Used by rendezvous.py only.
"""

from __future__ import annotations

from rover_kf.api.membership import WatchReply
from rover_kf.elastic.rendezvous.member import State
from rover_kf.elastic.rendezvous.world import World


class StackCall:
    """Who has still to be told.

    Args:
        world: whose members.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._untold: set[str] = set()

    def begin(self) -> None:
        """Every member that runs shall send the stacks of its processes."""
        self._untold = {seat.member.pod for seat in self._world.members()}

    def announce(self) -> None:
        """Tell those whose request is there to be answered."""
        for pod in sorted(self._untold):
            seat = self._world.seats.get(pod)
            if seat is None or seat.state is not State.RUNNING:
                self._untold.discard(pod)
            elif seat.ticket is not None:
                self._untold.discard(pod)
                order = WatchReply(action="stacks", drain_at=self._world.drain_at)
                self._world.reply(seat, order)
