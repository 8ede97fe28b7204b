# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What failures and the passing of time do to the world; the decisions of the rendezvous.

Used by rendezvous.py only, which turns requests into the calls here and then calls ``advance``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from rover_kf.api import names
from rover_kf.api.faults.failure_kinds import HANG
from rover_kf.api.membership import Failure, JoinReply, WatchReply
from rover_kf.elastic.failures.classify import root_cause
from rover_kf.elastic.failures.rule import FAIL_JOB, NEEDS_OTHER_WORLD_SIZE
from rover_kf.elastic.rendezvous.member_index import MemberPhase, MemberState
from rover_kf.elastic.rendezvous.pod_exclusion import PodExclusions
from rover_kf.elastic.rendezvous.restart_budget import RepeatedErrorDetector, RestartLimiter
from rover_kf.elastic.rendezvous.world import World

DRAIN_TAIL = 5.0
"""Seconds that the others have once the first member has drained: they cannot step without it."""

CHECK_SECONDS = 25e-6
"""Between two looks for the silent, for each seat: a walk over all takes a tenth of it."""
SHOWN_NEWCOMERS = 8
"""Newcomers that an event names."""


class FailurePolicy:
    """Keeps one world: who is lost, when it changes, when it ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.restart_limiter = RestartLimiter(world)
        self.failures = 0
        """Failures that were told, one a round."""
        self.repeated_error = RepeatedErrorDetector()
        self.exclusions = PodExclusions(world)
        self._last_failure: Failure | None = None
        self._stepless_failure: tuple[str, str] | None = None
        """Kind and reason of what broke the last round before its first step, by nobody's fault."""
        self._last_check = float("-inf")

    def advance(self, now: float) -> None:
        """Do everything that is due."""
        if self.world.closed is None:
            if now - self._last_check >= CHECK_SECONDS * len(self.world.member_index):
                self._last_check = now
                self._expire_members(now)
            self._end_if_complete()
            self._change_world(now)
            if not self.world.active and self.world.closed is None:
                self._form(now)
        self._answer_polls(now)

    def on_member_lost(self, seat: MemberState, reason: str, *, planned: bool) -> None:
        """A member is gone: the round breaks, unless it had drained already."""
        world = self.world
        drained = world.drain_at and seat.phase is MemberPhase.WAITING
        if world.member_index.in_active_round(seat) and not drained:
            world.end_round(reason, planned=planned)
        self._stepless_failure = None
        world.remove(seat)

    def on_drained_leave(self, seat: MemberState, reason: str, now: float) -> None:
        """A member is gone that has drained: the others end the same step before the round does."""
        if self.world.drain_at and self.world.member_index.in_active_round(seat):
            self.shorten_drain(now)
            self.world.remove(seat)
        else:
            self.on_member_lost(seat, reason, planned=True)

    def shorten_drain(self, now: float) -> None:
        """The first member has drained: the others cannot step on without it."""
        self.world.drain_deadline = min(self.world.drain_deadline, now + DRAIN_TAIL)

    def on_failure(self, failure: Failure) -> None:
        """A process of the active round died: count it, and end the job or the round."""
        world = self.world
        if world.drain_at and not failure.consumes_budget:
            # It learnt of the drain too late and went on alone; the step of the drain is sealed.
            world.end_round("a rank outran the drain", planned=True)
            return
        told = self._decide(failure)
        if world.closed is None:
            world.end_round(told, planned=False)

    def on_late_failure(self, failure: Failure) -> None:
        """A process died before the round ended, and is told of after: it may be the cause."""
        known = self._last_failure
        if failure.consequence or not failure.consumes_budget:
            return
        if known and known.round == failure.round and root_cause([known, failure]) is known:
            return
        self._decide(failure)

    def _decide(self, failure: Failure) -> str:
        world = self.world
        told = f"rank {failure.rank} in {failure.pod}: {failure.kind}: {failure.reason}"
        finished = [seat for seat in world.members() if seat.phase is MemberPhase.FINISHED]
        deserted = bool(finished) and not failure.consumes_budget
        if deserted:
            early = world.label(finished[0])
            told = f"{early} ended with 0 while others still trained, which lost it: {told}"
        new = self._last_failure is None or self._last_failure.round != failure.round
        if failure.consumes_budget or new:
            world.emit_event(names.EVENT_PROCESS_FAILED, told, warning=True)
        self.failures += new
        self._last_failure = failure
        again = self.repeated_error.is_repeat(failure.signature, world.progress, world.now)
        if again:
            self.fail_job(f"the same error in the same place again, no restart helps: {told}")
        elif self._is_final(failure):
            self.fail_job(told)
        elif failure.consumes_budget:
            self._stepless_failure = None
            if not self.exclusions.charge_pod(failure):
                self._consume_budget(failure.round, failure.kind, told)
        elif deserted:  # nobody was lost: the script does so again, restart after restart
            self._stepless_failure = None
            self._consume_budget(failure.round, failure.kind, told)
        elif world.progress.step is None:
            self._stepless_failure = failure.kind, told
        return told

    def _is_final(self, failure: Failure) -> bool:
        """Whether no restart helps a script that has not made a step yet."""
        world = self.world
        if world.progress.any_reported:
            return False
        members = len(world.round.members) if world.round else 0
        whole = members >= world.limits.largest_world(world.expected)
        return failure.action == FAIL_JOB or (failure.action == NEEDS_OTHER_WORLD_SIZE and whole)

    def begin_drain(self, reason: str, now: float) -> None:
        """Change the world: at a step to come, or at once if the script never reports steps."""
        world, limits = self.world, self.world.limits
        step = world.progress.drain_step(now, limits.drain_notice)
        if not world.progress.any_reported:
            world.end_round(reason, planned=True)
        elif step is not None:
            world.drain_deadline = now + limits.drain
            self._drain_at(step)

    def _drain_at(self, step: int) -> None:
        members = self.world.members()
        self.world.drain_at = step
        self.world.unconfirmed = {seat.member.pod for seat in members}
        for seat in members:
            self.announce_drain(seat)

    def announce_drain(self, seat: MemberState) -> None:
        """Tell a running member the drain step, if it does not know it."""
        world = self.world
        if (
            world.drain_at
            and seat.acked_drain != world.drain_at
            and seat.phase is MemberPhase.RUNNING
        ):
            world.reply(seat, WatchReply(action="drain", drain_at=world.drain_at))

    def restart_hung(self, reason: str) -> None:
        """Start the processes anew: they live, but training stands still."""
        if self.world.active:
            self.failures += 1
            self._stepless_failure = None
            self._consume_budget(self.world.round_number, HANG, reason)
            if self.world.closed is None:
                self.world.end_round(reason, planned=False)

    def fail_job(self, verdict: str) -> None:
        """End the job: no restart helps."""
        self.world.emit_event(names.EVENT_JOB_FAILED, verdict, warning=True)
        self.world.close(names.EXIT_USER_ERROR, verdict)

    def _expire_members(self, now: float) -> None:
        world, limits = self.world, self.world.limits
        for seat in list(world.member_index.values()):
            lease = limits.stop_lease if seat.phase is MemberPhase.STOPPING else limits.lease
            # While its request is open it waits for us, however long we were away ourselves;
            # a connection that leads nowhere shows when the answer is followed by nothing.
            silent = seat.ticket is None and now - seat.last_seen >= lease
            deaf = seat.stop_sent_at is not None and now - seat.stop_sent_at >= limits.ack_timeout
            closed = seat.disconnected_at is not None and now - seat.disconnected_at >= limits.grace
            # A running member's connection may close because its sidecar restarts: only when
            # its peers noticed too (the round broke) is the closed connection a death.
            if silent or deaf or (closed and not world.member_index.in_active_round(seat)):
                cause = "its connection closed" if closed else "it fell silent"
                why = f"{world.label(seat)} was lost: {cause}"
                world.emit_event(names.EVENT_MEMBER_LOST, why, warning=True)
                self.on_member_lost(seat, why, planned=False)

    def _end_if_complete(self) -> None:
        world = self.world
        if not world.active or world.round is None:
            return
        seats = world.member_index
        finished = seats.group(MemberPhase.FINISHED, in_round=True)
        if len(finished) == len(world.round.members):
            world.emit_event(names.EVENT_FINISHED, "all training processes ended with 0")
            world.close(names.EXIT_DONE, "")
        elif not any(
            seats.group(state, in_round=True)
            for state in (MemberPhase.RUNNING, MemberPhase.STOPPING)
        ):
            world.end_round("the world has drained", planned=True)

    def _change_world(self, now: float) -> None:
        world = self.world
        if not world.active:
            return
        if world.drain_at:
            if now >= world.drain_deadline:
                world.end_round("the drain took too long", planned=True)
            else:
                self._extend_drain(now)
        elif world.member_index.group(MemberPhase.FINISHED, in_round=True):
            return
        elif world.highest_node_rank >= world.expected:
            self.begin_drain(f"the job has {world.expected} pods now", now)
        elif leaving := world.member_index.leaving():
            self.begin_drain(f"{_format_members(leaving)} ends", now)
        elif newcomers := world.member_index.group(MemberPhase.WAITING, in_round=False):
            self._admit(newcomers, now)

    def _admit(self, newcomers: Collection[MemberState], now: float) -> None:
        world, limits = self.world, self.world.limits
        members = len(world.round.members) if world.round else 0
        if limits.largest_world(members + len(newcomers)) <= members:
            return  # they wait until a member goes, or others come
        everyone = members + len(newcomers) >= world.expected
        waited = now - next(iter(newcomers)).joined
        if waited >= limits.drain:
            world.end_round("a newcomer waits and no step was reported", planned=True)
        elif everyone or waited >= limits.settle:
            self.begin_drain(f"{_format_members(newcomers)} joins", now)

    def _extend_drain(self, now: float) -> None:
        """Put the drain off while somebody has not confirmed it and the step comes near."""
        world, notice = self.world, self.world.limits.drain_notice
        near = world.progress.drain_step(now, notice / 2)
        if not world.unconfirmed or near is None or near <= world.drain_at:
            return
        gone = (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.FINISHED)
        if not any(world.member_index.group(state, in_round=True) for state in gone):
            self._drain_at(world.progress.drain_step(now, notice) or near)

    def _form(self, now: float) -> None:
        before = self.world.number
        self.world.start_if_ready(now)
        if self.world.number > before and self._stepless_failure:
            # Nobody died, nobody stepped, and yet the round broke: not for ever.
            (kind, reason), self._stepless_failure = self._stepless_failure, None
            self._consume_budget(before, kind, reason)

    def _consume_budget(self, round_number: int, kind: str, reason: str) -> None:
        if verdict := self.restart_limiter.consume(round_number, kind, reason):
            self.fail_job(verdict)

    def _answer_polls(self, now: float) -> None:
        world, limits = self.world, self.world.limits
        poll = max(
            limits.poll, min(len(world.member_index) / limits.max_polls_per_second, limits.max_poll)
        )
        for seat in world.member_index.requests_until(now - poll):
            seat.last_seen = now
            if seat.phase is MemberPhase.RUNNING:
                world.reply(seat, WatchReply(action="none", drain_at=world.drain_at))
            else:
                world.reply(seat, JoinReply(action="wait"))


def _format_members(seats: Collection[MemberState]) -> str:
    shown = ", ".join(seat.member.pod for seat in itertools.islice(seats, SHOWN_NEWCOMERS))
    return shown + (
        f" and {len(seats) - SHOWN_NEWCOMERS} more" if len(seats) > SHOWN_NEWCOMERS else ""
    )
