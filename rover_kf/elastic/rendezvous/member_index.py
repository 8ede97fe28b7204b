# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All seats, grouped so that a request's questions need no walk over the others.

A coordinator of ten thousand members answers thousands of requests a second; whatever one request
costs must not grow with the members. So seats change their state here alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from rover_kf.api.membership import Member
from rover_kf.elastic.rendezvous.member import Seat, State

Group = dict[str, Seat]


class Roster:
    """Seats by pod; *inside* are those whose launcher is a member of the active round."""

    def __init__(self) -> None:
        self._seats: Group = {}
        self._members: dict[str, Member] = {}
        self._groups: dict[tuple[bool, State], Group] = {
            key: {} for key in itertools.product((True, False), State)
        }
        self._open: dict[int, Seat] = {}
        self._leaving: Group = {}

    def __len__(self) -> int:
        return len(self._seats)

    def get(self, pod: str) -> Seat | None:
        """The pod's seat."""
        return self._seats.get(pod)

    def values(self) -> Collection[Seat]:
        """Every seat."""
        return self._seats.values()

    def inside(self, seat: Seat) -> bool:
        """Whether the seat's launcher (this very one) is a member of the active round."""
        return self._members.get(seat.member.pod) == seat.member

    def group(self, state: State, *, inside: bool) -> Collection[Seat]:
        """Seats in that state; those that wait in the order in which they began to."""
        return self._groups[inside, state].values()

    def latest(self, state: State, *, inside: bool) -> Seat | None:
        """The seat that came to that state last."""
        return next(reversed(self._groups[inside, state].values()), None)

    def leaving(self) -> tuple[Seat, ...]:
        """Seats of members whose pods are ending."""
        return tuple(seat for seat in self._leaving.values() if self.inside(seat))

    def put(self, seat: Seat) -> None:
        """Add a seat; its pod has none."""
        self._seats[seat.member.pod] = seat
        self._own_group(seat)[seat.member.pod] = seat

    def drop(self, seat: Seat) -> None:
        """Take a seat away, with its open request."""
        self.release(seat)
        self._own_group(seat).pop(seat.member.pod, None)
        self._seats.pop(seat.member.pod, None)
        self._leaving.pop(seat.member.pod, None)

    def turn(self, seat: Seat, state: State) -> None:
        """Change a seat's state."""
        if seat.state is not state:
            self._own_group(seat).pop(seat.member.pod, None)
            seat.state = state
            self._own_group(seat)[seat.member.pod] = seat

    def mark_leaving(self, seat: Seat, *, leaving: bool) -> None:
        """Note whether the seat's pod is ending."""
        if leaving:
            self._leaving[seat.member.pod] = seat
        else:
            self._leaving.pop(seat.member.pod, None)

    def begin(self, members: Iterable[Member]) -> None:
        """A round is active from now on."""
        self._regroup({member.pod: member for member in members})

    def end(self) -> None:
        """No round is active."""
        self._regroup({})

    # -- open requests --------------------------------------------------------------------------

    def hold(self, seat: Seat, ticket: int, now: float) -> None:
        """Keep a request open."""
        self.release(seat)
        seat.hold(ticket, now)
        self._open[ticket] = seat

    def release(self, seat: Seat) -> int | None:
        """The seat's open request is answered, or lost; returns its ticket."""
        ticket, seat.ticket = seat.ticket, None
        if ticket is not None:
            self._open.pop(ticket, None)
        return ticket

    def holder(self, ticket: int) -> Seat | None:
        """Whose open request it is."""
        return self._open.get(ticket)

    def asked_until(self, moment: float) -> list[Seat]:
        """Seats whose open request came then or earlier."""
        return list(itertools.takewhile(lambda seat: seat.asked <= moment, self._open.values()))

    def _own_group(self, seat: Seat) -> Group:
        return self._groups[self.inside(seat), seat.state]

    def _regroup(self, members: dict[str, Member]) -> None:
        self._members = members
        for group in self._groups.values():
            group.clear()
        for seat in sorted(self._seats.values(), key=lambda seat: seat.joined):
            self._own_group(seat)[seat.member.pod] = seat
