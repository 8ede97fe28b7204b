# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Seats and the current round, with the transitions that the rendezvous makes between them.

Used by rendezvous.py only. A round is *active* from its formation until it breaks. Ranks follow
node_rank. ``awaited`` holds the node ranks that a formation waits for: everyone expected at first;
a rank that was lost, left or outwaited is not waited for until it joins again.
"""

from __future__ import annotations

from collections.abc import Collection

from rover_kf.api import names
from rover_kf.api.membership import JoinReply, Round, WatchReply
from rover_kf.elastic.rendezvous.effects import Answer, Broken, Closed, Effect, Formed, Tell
from rover_kf.elastic.rendezvous.event_text import shortened
from rover_kf.elastic.rendezvous.member import Seat, State
from rover_kf.elastic.rendezvous.member_index import Roster
from rover_kf.elastic.rendezvous.progress import Progress
from rover_kf.elastic.rendezvous.rendezvous_limits import Limits


class World:
    """What is known of the members, and the round that they form."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seats = Roster()
        self.round: Round | None = None
        self.number = limits.first_round - 1
        self.active = False
        self.expected = limits.nodes
        self.awaited = set(range(limits.nodes))
        self.highest = -1
        """Greatest node rank of the newest round."""
        self.drain_at = 0
        self.drain_deadline = 0.0
        self.unaware: set[str] = set()
        """Pods of members that have not confirmed the drain."""
        self.progress = Progress()
        self.closed: Closed | None = None
        self.not_before = 0.0
        """No round starts earlier: failures in a row are given time."""
        self.ended_by = ""
        """What ended the newest round, in words; empty: nothing that is known here has."""
        self.now = 0.0
        """Of the request or tick that is being worked on."""
        self._effects: list[Effect] = []

    @property
    def round_number(self) -> int:
        """Number of the newest round; 0 before the first."""
        return self.round.number if self.round else 0

    def flush(self) -> tuple[Effect, ...]:
        """The effects since the last flush, in order."""
        effects, self._effects = tuple(self._effects), []
        return effects

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an event."""
        self._effects.append(Tell(reason, message, warning))

    def answer(self, ticket: int, reply: JoinReply | WatchReply) -> None:
        """Answer a request that no seat holds."""
        self._effects.append(Answer(ticket, reply))

    def reply(self, seat: Seat, reply: JoinReply | WatchReply) -> None:
        """Answer the seat's open request; a seat without one will ask again."""
        ticket = self.seats.release(seat)
        if ticket is not None:
            self.answer(ticket, reply)

    @property
    def lacks_pods(self) -> bool:
        """Whether all who are here wait, and no round can start without others."""
        waiting = self.seats.group(State.WAITING, inside=False)
        held = self.now < self.not_before
        return not self.active and not held and len(waiting) == len(self.seats)

    @property
    def missing(self) -> tuple[int, ...]:
        """Node ranks that the next round waits for and that are not here; none while one runs."""
        if self.active or self.closed:
            return ()
        return tuple(sorted(self.awaited - {seat.member.node_rank for seat in self.seats.values()}))

    def in_round(self, seat: Seat) -> bool:
        """Whether the seat's launcher (this very one) is a member of the active round."""
        return self.seats.inside(seat)

    def members(self) -> list[Seat]:
        """Seats of the active round's members."""
        return [seat for seat in self.seats.values() if self.in_round(seat)]

    def newcomers(self) -> Collection[Seat]:
        """Seats that wait for the active round to make room, the first one first."""
        return self.seats.group(State.WAITING, inside=False) if self.active else ()

    def confirm_drain(self, seat: Seat, drain_at: int) -> None:
        """A running member has said which drain step it knows."""
        seat.drain_known = drain_at
        if self.drain_at and drain_at == self.drain_at:
            self.unaware.discard(seat.member.pod)

    def name(self, seat: Seat) -> str:
        """The seat's pod, with its ranks in the newest round."""
        return self.round.name(seat.member) if self.round else seat.member.pod

    def start_reply(self) -> JoinReply:
        """The order to start the current round."""
        return JoinReply(action="start", round=self.round)

    def break_round(self, why: str, *, planned: bool) -> None:
        """End the active round: whoever runs is told to stop and join again.

        An order can go to a launcher that died a moment ago, so its first word is waited for
        only shortly (``told_at``).
        """
        if not self.active:
            return
        self.ended_by = why
        members = self.members()
        self._end()
        self._effects.append(Broken(planned, why))
        for seat in members:
            if seat.state is State.RUNNING:
                self.reply(seat, WatchReply(action="restart", reason=why))
            elif seat.state is State.FINISHED:
                self.reply(seat, JoinReply(action="retry", reason=why))
            else:
                continue
            self.seats.turn(seat, State.STOPPING)
            seat.told_at = max(self.now, seat.seen)

    def remove(self, seat: Seat) -> None:
        """Forget a member; nobody waits for its rank until it joins again."""
        if seat.state is State.RUNNING:
            self.reply(seat, WatchReply(action="restart", reason="it was taken for lost"))
        self.reply(seat, JoinReply(action="retry", reason="it was taken for lost"))
        self.seats.drop(seat)
        self.unaware.discard(seat.member.pod)
        self.awaited.discard(seat.member.node_rank)

    def dismiss(self, seat: Seat, why: str) -> None:
        """Tell a waiting member that it has no place now."""
        self.reply(seat, JoinReply(action="drained", reason=why))
        self.remove(seat)

    def dismiss_beyond(self) -> None:
        """Nobody is waited for who is not expected, and such a one does not wait here."""
        self.awaited = {rank for rank in self.awaited if rank < self.expected}
        for seat in list(self.seats.values()):
            if seat.state is State.WAITING and seat.member.node_rank >= self.expected:
                self.dismiss(seat, f"the job has {self.expected} pods now")

    def close(self, exit_code: int, verdict: str) -> None:
        """End the job: every open request is answered, every later one too."""
        self.closed = Closed(exit_code, verdict)
        self._end()
        self._effects.append(self.closed)
        for seat in self.seats.values():
            if seat.state is State.RUNNING:
                self.reply(seat, WatchReply(action="closed", exit_code=exit_code, reason=verdict))
            else:
                self.reply(seat, JoinReply(action="closed", exit_code=exit_code, reason=verdict))

    def adopt(self, world: Round, now: float) -> None:
        """Take over a round that runs already: this coordinator is new, the training is not."""
        self._begin(world, now)
        self.expected = self.highest + 1
        self.awaited = {member.node_rank for member in world.members}
        # It did not begin now, but steps of a round that nobody was told of would count for none.
        self._effects.append(Formed(world, adopted=True))
        conflict = False
        for member in world.members:
            known = self.seats.get(member.pod)
            conflict = conflict or known is not None
            if known is None:
                # Seen in the future: each member has a lease more to find this coordinator.
                self.seats.put(Seat(member, State.RUNNING, seen=now + self.limits.lease))
        for seat in self.seats.values():
            self.awaited.add(seat.member.node_rank)
            self.expected = max(self.expected, seat.member.node_rank + 1)
        if conflict:
            self.break_round("a member of the round had started anew", planned=False)

    def form(self, now: float) -> None:
        """Start a round if everyone who is waited for is ready."""
        if now < self.not_before:
            return
        count, last = self._waiting()
        size = self.limits.fitting(count)
        if last is None or not size or count < len(self.seats):
            return
        outwaited = now - last.joined >= self.limits.patience
        if size < self.limits.fitting(len(self.awaited)) and not outwaited:
            return  # whoever waits is awaited, too: somebody is missing
        waiting = list(self.seats.values())
        ranks = {seat.member.node_rank for seat in waiting}
        if not outwaited and size < self.limits.fitting(len(self.awaited | ranks)):
            return
        self.awaited = ranks
        waiting.sort(key=lambda seat: (seat.member.node_rank, seat.member.pod))
        self._start(waiting[:size], now)

    def _waiting(self) -> tuple[int, Seat | None]:
        """How many wait while no round is active, and who came last."""
        last = self.seats.latest(State.WAITING, inside=False)
        return len(self.seats.group(State.WAITING, inside=False)), last

    def _start(self, chosen: list[Seat], now: float) -> None:
        world = Round(
            number=self.number + 1,
            members=tuple(seat.member for seat in chosen),
            world_size=sum(seat.member.processes for seat in chosen),
            store_host=chosen[0].store_host,
            store_port=chosen[0].store_port,
        )
        self._begin(world, now)
        self._effects.append(Formed(world))
        self._tell_formed(world, idle=len(self.seats) - len(chosen))
        order = self.start_reply()
        for seat in chosen:
            self.seats.turn(seat, State.RUNNING)
            seat.hear(now)
            self.reply(seat, order)

    def _tell_formed(self, world: Round, *, idle: int) -> None:
        left = f"; {idle} more would make no allowed size" if idle else ""
        why = shortened(self.ended_by)
        before = f"; the one before ended: {why}" if why else ""
        self.ended_by = ""
        message = (
            f"round {world.number}: {world.world_size} processes in {len(world.members)} pods"
            f"{left}{before}"
        )
        self.tell(names.EVENT_WORLD_FORMED, message)

    def _begin(self, world: Round, now: float) -> None:
        self.round, self.active = world, True
        self.number = max(self.number, world.number)
        self.highest = max(member.node_rank for member in world.members)
        self.drain_at = 0
        self.seats.begin(world.members)
        self.progress.begin(world.number, now)

    def _end(self) -> None:
        self.active, self.drain_at = False, 0
        self.seats.end()
