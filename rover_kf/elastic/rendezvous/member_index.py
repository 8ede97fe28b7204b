# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An index of the launchers, in which no request walks over all members.

A coordinator of ten thousand members answers thousands of requests a second. So members change
their phase here only.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable

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
    disconnected_at: float | None = None
    """When its request's connection closed, if nothing was heard since."""
    stop_sent_at: float | None = None
    """When it was told to stop, until it says anything."""
    store_host: str = ""
    store_port: int = 0
    acked_drain: int = 0
    """Drain step that it has been told."""

    def mark_alive(self, now: float) -> None:
        """It has said something: it lives."""
        self.last_seen, self.disconnected_at, self.stop_sent_at = now, None, None

    def mark_ready(self, request: JoinRequest, now: float) -> None:
        """It is ready for a round, and about to wait."""
        if self.phase is not MemberPhase.WAITING:
            self.joined = now
        self.store_host, self.store_port = request.store_host, request.store_port
        self.acked_drain = 0


Group = dict[str, MemberState]


class MemberIndex:
    """Seats by pod; *inside* are those whose launcher is a member of the active round."""

    def __init__(self) -> None:
        self._by_pod: Group = {}
        self._members: dict[str, Member] = {}
        self._groups: dict[tuple[bool, MemberPhase], Group] = {
            key: {} for key in itertools.product((True, False), MemberPhase)
        }
        self._open: dict[int, MemberState] = {}
        self._leaving: Group = {}

    def __len__(self) -> int:
        return len(self._by_pod)

    def get(self, pod: str) -> MemberState | None:
        """The pod's seat."""
        return self._by_pod.get(pod)

    def values(self) -> Collection[MemberState]:
        """Every seat."""
        return self._by_pod.values()

    def in_active_round(self, seat: MemberState) -> bool:
        """Whether the seat's launcher (this very one) is a member of the active round."""
        return self._members.get(seat.member.pod) == seat.member

    def group(self, phase: MemberPhase, *, in_round: bool) -> Collection[MemberState]:
        """Seats in that state; those that wait in the order in which they began to."""
        return self._groups[in_round, phase].values()

    def latest(self, phase: MemberPhase, *, in_round: bool) -> MemberState | None:
        """The seat that came to that state last."""
        return next(reversed(self._groups[in_round, phase].values()), None)

    def leaving(self) -> tuple[MemberState, ...]:
        """Seats of members whose pods are ending."""
        return tuple(seat for seat in self._leaving.values() if self.in_active_round(seat))

    def add(self, seat: MemberState) -> None:
        """Add a seat; its pod has none."""
        self._by_pod[seat.member.pod] = seat
        self._group_of(seat)[seat.member.pod] = seat

    def remove(self, seat: MemberState) -> None:
        """Take a seat away, with its open request."""
        self.release_request(seat)
        self._group_of(seat).pop(seat.member.pod, None)
        self._by_pod.pop(seat.member.pod, None)
        self._leaving.pop(seat.member.pod, None)

    def set_phase(self, seat: MemberState, phase: MemberPhase) -> None:
        """Change a seat's state."""
        if seat.phase is not phase:
            self._group_of(seat).pop(seat.member.pod, None)
            seat.phase = phase
            self._group_of(seat)[seat.member.pod] = seat

    def mark_leaving(self, seat: MemberState, *, leaving: bool) -> None:
        """Note whether the seat's pod is ending."""
        if leaving:
            self._leaving[seat.member.pod] = seat
        else:
            self._leaving.pop(seat.member.pod, None)

    def begin_round(self, members: Iterable[Member]) -> None:
        """A round is active from now on."""
        self._regroup({member.pod: member for member in members})

    def end_round(self) -> None:
        """No round is active."""
        self._regroup({})

    # -- open requests --------------------------------------------------------------------------

    def hold_request(self, seat: MemberState, ticket: int, now: float) -> None:
        """Keep a request open."""
        self.release_request(seat)
        seat.ticket, seat.requested_at = ticket, now
        seat.mark_alive(now)
        self._open[ticket] = seat

    def release_request(self, seat: MemberState) -> int | None:
        """The seat's open request is answered, or lost; returns its ticket."""
        ticket, seat.ticket = seat.ticket, None
        if ticket is not None:
            self._open.pop(ticket, None)
        return ticket

    def request_holder(self, ticket: int) -> MemberState | None:
        """Whose open request it is."""
        return self._open.get(ticket)

    def requests_until(self, moment: float) -> list[MemberState]:
        """Seats whose open request came then or earlier."""
        return list(
            itertools.takewhile(lambda seat: seat.requested_at <= moment, self._open.values())
        )

    def _group_of(self, seat: MemberState) -> Group:
        return self._groups[self.in_active_round(seat), seat.phase]

    def _regroup(self, members: dict[str, Member]) -> None:
        self._members = members
        for group in self._groups.values():
            group.clear()
        for seat in sorted(self._by_pod.values(), key=lambda seat: seat.joined):
            self._group_of(seat)[seat.member.pod] = seat
