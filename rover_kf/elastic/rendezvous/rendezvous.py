# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Membership and rounds of one job: what the coordinator answers, and when.

Methods take the time and return effects; nothing here waits, sends or reads a clock. Requests may
be lost, doubled or late, and a member may die between any two (docs/protocol.md, "A round in
time"). tests/properties proves that after the faults there is one world, with ranks in node order
and no round number twice.
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
    WatchReply,
    WatchRequest,
)
from rover_kf.elastic.rendezvous.effects import Effect, JobClosed
from rover_kf.elastic.rendezvous.failure_policy import FailurePolicy
from rover_kf.elastic.rendezvous.member_index import MemberPhase, MemberState
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from rover_kf.elastic.rendezvous.world import World


class StackRequest:
    """The members of a world that still have to send their stacks."""

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


class Rendezvous:
    """The state machine; one for a coordinator."""

    def __init__(self, limits: RendezvousLimits) -> None:
        self.world = World(limits)
        self.failure_policy = FailurePolicy(self.world)
        self.stack_request = StackRequest(self.world)
        self.scaled = False
        """Whether a controller has said how many pods the job has."""
        self.inherited = 0
        """Newest round of which the copy of a lost coordinator's state has told."""

    def join(self, request: JoinRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher is ready; answered at once or by a later effect for the ticket."""
        self.world.now = now
        world, member = self.world, request.member
        if world.closed:
            return self._reply_closed(world.closed, ticket, JoinReply)
        world.number = max(world.number, request.last_round)
        seat = world.member_index.get(member.pod)
        if seat and seat.member != member:
            why = f"{world.label(seat)} was lost: its launcher started anew"
            world.emit_event(names.EVENT_MEMBER_LOST, why, warning=True)
            self.failure_policy.on_member_lost(seat, why, planned=False)
            seat = None
        if why := self._rejection_reason(request):
            if seat:
                self.failure_policy.on_member_lost(seat, why, planned=True)
            world.send_reply(ticket, JoinReply(action="drained", reason=why))
            return self.tick(now)
        if seat is None:
            seat = MemberState(member, MemberPhase.STOPPING, last_seen=now)
            world.member_index.add(seat)
        world.awaited_ranks.add(member.node_rank)
        world.expected = max(world.expected, member.node_rank + 1)
        self._hold_request(seat, ticket, now)
        inside = world.member_index.in_active_round(seat)
        running = inside and seat.phase is MemberPhase.RUNNING
        if running and request.last_round < world.round_number:
            world.reply(seat, world.start_reply())
            return self.tick(now)
        if inside:
            if world.drain_at:
                self.failure_policy.shorten_drain(now)
            elif seat.phase is not MemberPhase.WAITING:
                world.member_index.set_phase(seat, MemberPhase.STOPPING)
                world.end_round(f"the processes of {member.pod} ended", planned=False)
        seat.mark_ready(request, now)
        world.member_index.set_phase(seat, MemberPhase.WAITING)
        return self.tick(now)

    def watch(self, request: WatchRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher whose processes run asks for news."""
        self.world.now = now
        world = self.world
        if world.closed:
            return self._reply_closed(world.closed, ticket, WatchReply)
        if not self._learn_round(request, now):
            world.send_reply(ticket, WatchReply(action="report"))
            return world.flush()
        seat = self._member(request.pod, request.incarnation, request.round, now)
        if seat is None or seat.phase is not MemberPhase.RUNNING:
            world.send_reply(ticket, WatchReply(action="restart", reason="the world has changed"))
            return self.tick(now)
        world.member_index.mark_leaving(seat, leaving=request.leaving)
        seat.acked_drain = request.drain_at
        if world.drain_at and request.drain_at == world.drain_at:
            world.unconfirmed.discard(seat.member.pod)
        self._hold_request(seat, ticket, now)
        self.failure_policy.announce_drain(seat)
        return self.tick(now)

    def failure(self, failure: Failure, ticket: int, now: float) -> tuple[Effect, ...]:
        """A launcher's training process died; it has killed the rest and will join."""
        self.world.now = now
        world = self.world
        seat = self._member(failure.pod, failure.incarnation, failure.round, now)
        if world.closed is None and seat:
            if seat.phase is MemberPhase.RUNNING:
                world.member_index.release_request(seat)
                world.member_index.set_phase(seat, MemberPhase.STOPPING)
            self.failure_policy.on_failure(failure)
        elif world.closed is None and self._just_ended(failure):
            self.failure_policy.on_late_failure(failure)
        if world.closed:
            return self._reply_closed(world.closed, ticket, WatchReply)
        world.send_reply(ticket, WatchReply(action="restart", reason=failure.reason))
        return self.tick(now)

    def finish(self, request: FinishRequest, ticket: int, now: float) -> tuple[Effect, ...]:
        """All processes of a member ended with 0; a barrier over the round."""
        self.world.now = now
        world = self.world
        if world.closed:
            return self._reply_closed(world.closed, ticket, JoinReply)
        if not self._learn_round(request, now):
            world.send_reply(ticket, JoinReply(action="report"))
            return world.flush()
        seat = self._member(request.pod, request.incarnation, request.round, now)
        if seat is None or seat.phase not in (MemberPhase.RUNNING, MemberPhase.FINISHED):
            world.send_reply(ticket, JoinReply(action="retry", reason="the world has changed"))
            return self.tick(now)
        if seat.phase is MemberPhase.RUNNING:
            world.member_index.release_request(seat)
            world.member_index.set_phase(seat, MemberPhase.FINISHED)
        self._hold_request(seat, ticket, now)
        return self.tick(now)

    def leave(self, request: LeaveRequest, now: float) -> tuple[Effect, ...]:
        """A member goes for good; the rest re-forms without it."""
        self.world.now = now
        seat = self.world.member_index.get(request.pod)
        if seat and seat.member.incarnation == request.incarnation:
            if self.world.closed is None:
                why = f"{self.world.label(seat)} left: {request.reason or 'no reason given'}"
                self.world.emit_event(names.EVENT_MEMBER_LEFT, why)
                if request.drained:
                    self.failure_policy.on_drained_leave(seat, why, now)
                else:
                    self.failure_policy.on_member_lost(seat, why, planned=True)
            self.world.remove(seat)
        return self.tick(now)

    def mark_alive(self, pod: str, now: float) -> None:
        """The pod's launcher is at something else than joining or watching: it lives."""
        seat = self.world.member_index.get(pod)
        if seat:
            seat.mark_alive(now)

    def on_disconnect(self, ticket: int, now: float) -> tuple[Effect, ...]:
        """The connection of an open request has closed: its member may be dead."""
        self.world.now = now
        seat = self.world.member_index.request_holder(ticket)
        if seat:
            self.world.member_index.release_request(seat)
            seat.disconnected_at = now
        return self.tick(now)

    def scale(self, nodes: int, reason: str, now: float) -> tuple[Effect, ...]:
        """The job will have so many pods.

        Raises:
            InputError: fewer than min_nodes, more than max_nodes, or none of the sizes.
        """
        world, limits = self.world, self.world.limits
        if limits.largest_world(nodes) != nodes:
            sizes = ", ".join(map(str, limits.sizes))
            allowed = sizes or f"{limits.min_nodes} to {limits.max_nodes}"
            raise errors.InputError(f"scale to {nodes} pods: this job may have {allowed}")
        if nodes != world.expected:
            world.emit_event(names.EVENT_SCALED, f"{nodes} pods expected now: {reason or 'asked'}")
        self.set_expected(nodes)
        return self.tick(now)

    def set_expected(self, nodes: int) -> None:
        """The job has so many pods, whoever joins that has trained before."""
        self.scaled, self.world.expected = True, nodes
        self.world.dismiss_unexpected()

    def mark_unavailable(
        self, ranks: Collection[int], reason: str, now: float
    ) -> tuple[Effect, ...]:
        """Pods of those node ranks cannot come now: no round waits for them until they join."""
        world = self.world
        gone = set(ranks) & set(world.missing_ranks)
        if gone:
            world.awaited_ranks -= gone
            world.emit_event(names.EVENT_POD_SKIPPED, f"not waited for until it comes: {reason}")
        return self.tick(now)

    def observe(
        self, round_number: int, step: int, *, seconds: float, ended_at: float, now: float
    ) -> tuple[Effect, ...]:
        """A rank ended a step at ``ended_at`` (same clock as now) that took so many seconds."""
        self.world.progress.observe(round_number, step, seconds=seconds, ended_at=ended_at)
        return self.tick(now)

    def restart_hung(self, reason: str, now: float) -> tuple[Effect, ...]:
        """Start the processes of the round anew; a failure that counts."""
        self.failure_policy.restart_hung(reason)
        return self.tick(now)

    def restart_round(self, reason: str, now: float) -> tuple[Effect, ...]:
        """Start the processes of the round anew, for no failure of theirs."""
        self.world.now = now
        if self.world.active:
            self.world.emit_event(names.EVENT_MEMBER_LOST, reason, warning=True)
            self.world.end_round(reason, planned=False)
        return self.tick(now)

    def fail_job(self, verdict: str, now: float) -> tuple[Effect, ...]:
        """All processes have ended with 0, and what they made is of no use: the job has failed."""
        self.world.now = now
        closed = self.world.closed
        if closed is not None and closed.exit_code == names.EXIT_DONE:
            self.failure_policy.fail_job(verdict)
        return self.world.flush()

    def reject_job(self, verdict: str, now: float) -> tuple[Effect, ...]:
        """The job may not run; a round that runs already is left to its end."""
        self.world.now = now
        if self.world.closed is None and not self.world.active:
            self.failure_policy.fail_job(verdict)
        return self.world.flush()

    def tick(self, now: float) -> tuple[Effect, ...]:
        """Do what is due at that time."""
        self.world.now = now
        self.failure_policy.advance(now)
        self.stack_request.send_pending()
        return self.world.flush()

    def _hold_request(self, seat: MemberState, ticket: int, now: float) -> None:
        # An older request of the same launcher is one whose answer nobody reads any more.
        running = seat.phase is MemberPhase.RUNNING
        self.world.reply(seat, WatchReply("none") if running else JoinReply("wait"))
        self.world.member_index.hold_request(seat, ticket, now)

    def _reply_closed(
        self, closed: JobClosed, ticket: int, kind: type[JoinReply | WatchReply]
    ) -> tuple[Effect, ...]:
        code, verdict = closed.exit_code, closed.verdict
        self.world.send_reply(ticket, kind(action="closed", exit_code=code, reason=verdict))
        return self.world.flush()

    def _rejection_reason(self, request: JoinRequest) -> str:
        world, rank = self.world, request.member.node_rank
        if rank >= world.limits.max_nodes:
            return f"the job may have at most {world.limits.max_nodes} pods"
        # A launcher that never trained comes of a scaling nobody announced: it is welcome.
        if rank >= world.expected and self.scaled and request.last_round:
            return f"the job has {world.expected} pods now"
        return self.failure_policy.exclusions.denial_reason(request.member)

    def _member(
        self, pod: str, incarnation: str, round_number: int, now: float
    ) -> MemberState | None:
        seat = self.world.member_index.get(pod)
        if seat is None or seat.member.incarnation != incarnation:
            return None
        seat.mark_alive(now)
        current = self.world.round_number == round_number
        return seat if current and self.world.member_index.in_active_round(seat) else None

    def _just_ended(self, failure: Failure) -> bool:
        seat = self.world.member_index.get(failure.pod)
        ours = seat is not None and seat.member.incarnation == failure.incarnation
        return ours and not self.world.active and failure.round == self.world.round_number

    def _learn_round(self, request: WatchRequest | FinishRequest, now: float) -> bool:
        """Adopt the request's round if it is newer than ours; False if it does not describe it."""
        if request.round > self.world.round_number:
            if request.world is None or request.world.number != request.round:
                return False
            self.world.number = max(self.world.number, request.round)
            if self.world.active:
                self.world.end_round("a round with a higher number is running", planned=False)
            else:
                self.world.adopt(request.world, now)
        return True
