# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Membership and rounds of one job: what the coordinator answers, and when.

Called by the sidecar's coordinator role with each request and, often, ``tick``. Every method takes
the time and returns effects (effects.py); nothing here waits, sends or reads a clock. It holds
whatever the network does: requests may be lost, doubled or late, and a member may die between any
two of them. docs/protocol.md, "A round in time", is the story; tests/properties proves that once
faults stop there is one world, ranks in node order, and no round number twice.
"""

from __future__ import annotations

from collections.abc import Collection

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.membership import (
    Failure,
    FinishRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Round,
    WatchReply,
    WatchRequest,
)
from rover_kf.elastic.rendezvous.effects import Effect
from rover_kf.elastic.rendezvous.failure_policy import Steward
from rover_kf.elastic.rendezvous.member import Seat, State
from rover_kf.elastic.rendezvous.rendezvous_limits import Limits
from rover_kf.elastic.rendezvous.stack_request import StackCall
from rover_kf.elastic.rendezvous.world import World


class Rendezvous:
    """The state machine; one for a coordinator."""

    def __init__(self, limits: Limits) -> None:
        self.world = World(limits)
        self.steward = Steward(self.world)
        self.stack_call = StackCall(self.world)
        self.scaled = False
        """Whether a controller has said how many pods the job has."""
        self.inherited = 0
        """Newest round of which the copy of a lost coordinator's state has told."""

    def join(self, request: JoinRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher is ready; answered at once or by a later effect for the ticket."""
        self.world.now = now
        world, member = self.world, request.member
        if world.closed:
            return self._closed_join(ticket)
        world.number = max(world.number, request.last_round)
        seat = world.seats.get(member.pod)
        if seat and seat.member != member:
            why = f"{world.name(seat)} was lost: its launcher started anew"
            world.tell(names.EVENT_MEMBER_LOST, why, warning=True)
            self.steward.forget(seat, why, planned=False)
            seat = None
        if why := self._no_place(request):
            if seat:
                self.steward.forget(seat, why, planned=True)
            world.answer(ticket, JoinReply(action="drained", reason=why))
            return self._advance(now)
        if seat is None:
            seat = Seat(member, State.STOPPING, seen=now)
            world.seats.put(seat)
        world.awaited.add(member.node_rank)
        world.expected = max(world.expected, member.node_rank + 1)
        self._hold(seat, ticket, now)
        if self._missed_its_start(seat, request):
            world.reply(seat, world.start_reply())
            return self._advance(now)
        if world.in_round(seat):
            if world.drain_at:
                self.steward.hasten_drain(now)
            elif seat.state is not State.WAITING:
                world.seats.turn(seat, State.STOPPING)
                world.break_round(f"the processes of {member.pod} ended", planned=False)
        seat.ready(request, now)
        world.seats.turn(seat, State.WAITING)
        return self._advance(now)

    def watch(self, request: WatchRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher whose processes run asks for news."""
        self.world.now = now
        world = self.world
        if world.closed:
            code, verdict = world.closed.exit_code, world.closed.verdict
            world.answer(ticket, WatchReply(action="closed", exit_code=code, reason=verdict))
            return world.flush()
        if self._unknown(request.round):
            if request.world is None or request.world.number != request.round:
                world.answer(ticket, WatchReply(action="report"))
                return world.flush()
            self._adopt(request.world, now)
        seat = self._member(request.pod, request.incarnation, request.round, now)
        if seat is None or seat.state is not State.RUNNING:
            world.answer(ticket, WatchReply(action="restart", reason="the world has changed"))
            return self._advance(now)
        world.seats.mark_leaving(seat, leaving=request.leaving)
        world.confirm_drain(seat, request.drain_at)
        self._hold(seat, ticket, now)
        self.steward.announce_drain(seat)
        return self._advance(now)

    def failure(self, failure: Failure, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher's training process died; it has killed the rest and will join."""
        self.world.now = now
        world = self.world
        seat = self._member(failure.pod, failure.incarnation, failure.round, now)
        if world.closed is None and seat:
            if seat.state is State.RUNNING:
                world.seats.release(seat)
                world.seats.turn(seat, State.STOPPING)
            self.steward.judge(failure)
        elif world.closed is None and self._just_ended(failure):
            self.steward.judge_late(failure)
        if world.closed:
            code, verdict = world.closed.exit_code, world.closed.verdict
            world.answer(ticket, WatchReply(action="closed", exit_code=code, reason=verdict))
        else:
            world.answer(ticket, WatchReply(action="restart", reason=failure.reason))
        return self._advance(now)

    def finish(self, request: FinishRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """All processes of a member ended with 0; a barrier over the round."""
        self.world.now = now
        world = self.world
        if world.closed:
            return self._closed_join(ticket)
        if self._unknown(request.round):
            if request.world is None or request.world.number != request.round:
                world.answer(ticket, JoinReply(action="report"))
                return world.flush()
            self._adopt(request.world, now)
        seat = self._member(request.pod, request.incarnation, request.round, now)
        if seat is None or seat.state not in (State.RUNNING, State.FINISHED):
            world.answer(ticket, JoinReply(action="retry", reason="the world has changed"))
            return self._advance(now)
        if seat.state is State.RUNNING:
            world.seats.release(seat)
            world.seats.turn(seat, State.FINISHED)
        self._hold(seat, ticket, now)
        return self._advance(now)

    def leave(self, request: LeaveRequest, now: float) -> tuple[Effect, ...]:
        """A member goes for good; the rest re-forms without it."""
        self.world.now = now
        seat = self.world.seats.get(request.pod)
        if seat and seat.member.incarnation == request.incarnation:
            if self.world.closed is None:
                why = f"{self.world.name(seat)} left: {request.reason or 'no reason given'}"
                self.world.tell(names.EVENT_MEMBER_LEFT, why)
                if request.drained:
                    self.steward.release(seat, why, now)
                else:
                    self.steward.forget(seat, why, planned=True)
            self.world.remove(seat)
        return self._advance(now)

    def heard(self, pod: str, now: float) -> None:
        """The pod's launcher is at something else than joining or watching: it lives."""
        seat = self.world.seats.get(pod)
        if seat:
            seat.hear(now)

    def disconnected(self, ticket: int, now: float) -> tuple[Effect, ...]:
        """The connection of an open request has closed: its member may be dead."""
        self.world.now = now
        seat = self.world.seats.holder(ticket)
        if seat:
            self.world.seats.release(seat)
            seat.suspect = now
        return self._advance(now)

    def scale(self, nodes: int, reason: str, now: float) -> tuple[Effect, ...]:
        """The job will have so many pods.

        Raises:
            InputError: fewer than min_nodes, more than max_nodes, or none of the sizes.
        """
        world, limits = self.world, self.world.limits
        if limits.fitting(nodes) != nodes:
            sizes = ", ".join(map(str, limits.sizes))
            allowed = sizes or f"{limits.min_nodes} to {limits.max_nodes}"
            raise errors.InputError(f"scale to {nodes} pods: this job may have {allowed}")
        if nodes != world.expected:
            world.tell(names.EVENT_SCALED, f"{nodes} pods expected now: {reason or 'asked'}")
        self.expect(nodes)
        return self._advance(now)

    def expect(self, nodes: int) -> None:
        """The job has so many pods, whoever joins that has trained before."""
        self.scaled, self.world.expected = True, nodes
        self.world.dismiss_beyond()

    def absent(self, ranks: Collection[int], reason: str, now: float) -> tuple[Effect, ...]:
        """Pods of those node ranks cannot come now: no round waits for them until they join."""
        world = self.world
        gone = set(ranks) & set(world.missing)
        if gone:
            world.awaited -= gone
            world.tell(names.EVENT_POD_SKIPPED, f"not waited for until it comes: {reason}")
        return self._advance(now)

    def observe(
        self, round_number: int, step: int, *, seconds: float, at: float, now: float
    ) -> tuple[Effect, ...]:
        """A rank ended a step at ``at`` (same clock as now) that took so many seconds."""
        self.world.progress.observe(round_number, step, seconds=seconds, at=at)
        return self._advance(now)

    def restart(self, why: str, now: float) -> tuple[Effect, ...]:
        """Start the processes of the round anew; a failure that counts."""
        self.steward.restart(why)
        return self._advance(now)

    def renew(self, why: str, now: float) -> tuple[Effect, ...]:
        """Start the processes of the round anew, for no failure of theirs."""
        self.world.now = now
        if self.world.active:
            self.world.tell(names.EVENT_MEMBER_LOST, why, warning=True)
            self.world.break_round(why, planned=False)
        return self._advance(now)

    def condemn(self, verdict: str, now: float) -> tuple[Effect, ...]:
        """All processes have ended with 0, and what they made is of no use: the job has failed."""
        self.world.now = now
        closed = self.world.closed
        if closed is not None and closed.exit_code == names.EXIT_DONE:
            self.steward.fail(verdict)
        return self.world.flush()

    def tick(self, now: float) -> tuple[Effect, ...]:
        """Time has passed."""
        return self._advance(now)

    def _advance(self, now: float) -> tuple[Effect, ...]:
        self.world.now = now
        self.steward.advance(now)
        self.stack_call.announce()
        return self.world.flush()

    def _hold(self, seat: Seat, ticket: int, now: float) -> None:
        # An older request of the same launcher is one whose answer nobody reads any more.
        running = seat.state is State.RUNNING
        self.world.reply(seat, WatchReply("none") if running else JoinReply("wait"))
        self.world.seats.hold(seat, ticket, now)

    def _closed_join(self, ticket: int) -> tuple[Effect, ...]:
        closed = self.world.closed
        if closed is not None:
            code, verdict = closed.exit_code, closed.verdict
            self.world.answer(ticket, JoinReply(action="closed", exit_code=code, reason=verdict))
        return self.world.flush()

    def _no_place(self, request: JoinRequest) -> str:
        world, rank = self.world, request.member.node_rank
        if rank >= world.limits.max_nodes:
            return f"the job may have at most {world.limits.max_nodes} pods"
        # A launcher that never trained comes of a scaling nobody announced: it is welcome.
        if rank >= world.expected and self.scaled and request.last_round:
            return f"the job has {world.expected} pods now"
        return self.steward.penalties.why(request.member)

    def _missed_its_start(self, seat: Seat, request: JoinRequest) -> bool:
        running = self.world.in_round(seat) and seat.state is State.RUNNING
        return running and request.last_round < self.world.round_number

    def _member(self, pod: str, incarnation: str, round_number: int, now: float) -> Seat | None:
        seat = self.world.seats.get(pod)
        if seat is None or seat.member.incarnation != incarnation:
            return None
        seat.hear(now)
        current = self.world.round_number == round_number
        return seat if current and self.world.in_round(seat) else None

    def _just_ended(self, failure: Failure) -> bool:
        seat = self.world.seats.get(failure.pod)
        ours = seat is not None and seat.member.incarnation == failure.incarnation
        return ours and not self.world.active and failure.round == self.world.round_number

    def _unknown(self, round_number: int) -> bool:
        return round_number > self.world.round_number

    def _adopt(self, world: Round, now: float) -> None:
        self.world.number = max(self.world.number, world.number)
        if self.world.active:
            self.world.break_round("a round with a higher number is running", planned=False)
        else:
            self.world.adopt(world, now)
