# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One place in the rendezvous: a launcher as the coordinator knows it."""

from __future__ import annotations

import dataclasses
import enum

from rover_kf.api.membership import JoinRequest, Member


class MemberPhase(enum.Enum):
    """What a member is doing, as far as it has said."""

    WAITING = "waiting"
    """Joined; ready to start processes."""
    RUNNING = "running"
    """Its processes train in the current round."""
    STOPPING = "stopping"
    """Its processes are dead or are being killed; it will join."""
    FINISHED = "finished"
    """All its processes ended with 0; it waits for the others."""


@dataclasses.dataclass(slots=True)
class MemberState:
    """A launcher, its state and its open request."""

    member: Member
    phase: MemberPhase
    last_seen: float
    """When it last said something."""
    joined: float = 0.0
    """When it began to wait."""
    ticket: int | None = None
    """Its request that is kept open."""
    requested_at: float = 0.0
    """When that request came."""
    disconnected_at: float | None = None
    """When its request's connection closed, if nothing was heard since."""
    stop_sent_at: float | None = None
    """When it was told to stop, until it says anything."""
    store_host: str = ""
    store_port: int = 0
    acked_drain: int = 0
    """Drain step that it has been told."""

    def hold_request(self, ticket: int, now: float) -> None:
        """Note its open request (roster.py knows of it, too)."""
        self.ticket, self.requested_at = ticket, now
        self.mark_alive(now)

    def mark_alive(self, now: float) -> None:
        """It has said something: it lives."""
        self.last_seen, self.disconnected_at, self.stop_sent_at = now, None, None

    def mark_ready(self, request: JoinRequest, now: float) -> None:
        """It is ready for a round, and about to wait."""
        if self.phase is not MemberPhase.WAITING:
            self.joined = now
        self.store_host, self.store_port = request.store_host, request.store_port
        self.acked_drain = 0
