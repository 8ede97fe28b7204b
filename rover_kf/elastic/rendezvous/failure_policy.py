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
from rover_kf.elastic.failures.classify import first
from rover_kf.elastic.failures.rule import FAIL_JOB, OTHER_WORLD
from rover_kf.elastic.rendezvous.member import Seat, State
from rover_kf.elastic.rendezvous.pod_exclusion import Penalties
from rover_kf.elastic.rendezvous.repeated_error import Recurrence
from rover_kf.elastic.rendezvous.restart_budget import Restarts
from rover_kf.elastic.rendezvous.world import World

DRAIN_TAIL = 5.0
"""Seconds that the others have once the first member has drained: they cannot step without it."""

LOOK_SECONDS = 25e-6
"""Between two looks for the silent, for each seat: a walk over all takes a tenth of it."""
SHOWN_NEWCOMERS = 8
"""Newcomers that an event names."""


class Steward:
    """Keeps one world: who is lost, when it changes, when it ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.restarts = Restarts(world)
        self.failures = 0
        """Failures that were told, one a round."""
        self.recurrence = Recurrence()
        self.penalties = Penalties(world)
        self._reported: Failure | None = None
        self._fruitless: tuple[str, str] | None = None
        """Kind and reason of what broke the last round before its first step, by nobody's fault."""
        self._looked = float("-inf")

    def advance(self, now: float) -> None:
        """Do everything that is due."""
        if self.world.closed is None:
            if now - self._looked >= LOOK_SECONDS * len(self.world.seats):
                self._looked = now
                self._expire(now)
            self._complete()
            self._change_world(now)
            if not self.world.active and self.world.closed is None:
                self._form(now)
        self._answer_polls(now)

    def forget(self, seat: Seat, why: str, *, planned: bool) -> None:
        """A member is gone: the round breaks, unless it had drained already."""
        world = self.world
        drained = world.drain_at and seat.state is State.WAITING
        if world.in_round(seat) and not drained:
            world.break_round(why, planned=planned)
        self._fruitless = None
        world.remove(seat)

    def release(self, seat: Seat, why: str, now: float) -> None:
        """A member is gone that has drained: the others end the same step before the round does."""
        if self.world.drain_at and self.world.in_round(seat):
            self.hasten_drain(now)
            self.world.remove(seat)
        else:
            self.forget(seat, why, planned=True)

    def hasten_drain(self, now: float) -> None:
        """The first member has drained: the others cannot step on without it."""
        self.world.drain_deadline = min(self.world.drain_deadline, now + DRAIN_TAIL)

    def judge(self, failure: Failure) -> None:
        """A process of the active round died: count it, and end the job or the round."""
        world = self.world
        if world.drain_at and not failure.counts:
            # It learnt of the drain too late and went on alone; the step of the drain is sealed.
            world.break_round("a rank outran the drain", planned=True)
            return
        told = self._sentence(failure)
        if world.closed is None:
            world.break_round(told, planned=False)

    def judge_late(self, failure: Failure) -> None:
        """A process died before the round ended, and is told of after: it may be the cause."""
        known = self._reported
        if failure.consequence or not failure.counts:
            return
        if known and known.round == failure.round and first([known, failure]) is known:
            return
        self._sentence(failure)

    def _sentence(self, failure: Failure) -> str:
        world = self.world
        told = f"rank {failure.rank} in {failure.pod}: {failure.kind}: {failure.reason}"
        finished = [seat for seat in world.members() if seat.state is State.FINISHED]
        deserted = bool(finished) and not failure.counts
        if deserted:
            early = world.name(finished[0])
            told = f"{early} ended with 0 while others still trained, which lost it: {told}"
        new = self._reported is None or self._reported.round != failure.round
        if failure.counts or new:
            world.tell(names.EVENT_PROCESS_FAILED, told, warning=True)
        self.failures += new
        self._reported = failure
        again = self.recurrence.again(failure.signature, world.progress, world.now)
        if again:
            self.fail(f"the same error in the same place again, no restart helps: {told}")
        elif self._is_final(failure):
            self.fail(told)
        elif failure.counts:
            self._fruitless = None
            if not self.penalties.takes(failure):
                self._spend(failure.round, failure.kind, told)
        elif deserted:  # nobody was lost: the script does so again, restart after restart
            self._fruitless = None
            self._spend(failure.round, failure.kind, told)
        elif world.progress.step is None:
            self._fruitless = failure.kind, told
        return told

    def _is_final(self, failure: Failure) -> bool:
        """Whether no restart helps a script that has not made a step yet."""
        world = self.world
        if world.progress.ever:
            return False
        members = len(world.round.members) if world.round else 0
        whole = members >= world.limits.fitting(world.expected)
        return failure.action == FAIL_JOB or (failure.action == OTHER_WORLD and whole)

    def begin_drain(self, why: str, now: float) -> None:
        """Change the world: at a step to come, or at once if the script never reports steps."""
        world, limits = self.world, self.world.limits
        step = world.progress.drain_step(now, limits.drain_notice)
        if not world.progress.ever:
            world.break_round(why, planned=True)
        elif step is not None:
            world.drain_deadline = now + limits.drain
            self._drain_at(step)

    def _drain_at(self, step: int) -> None:
        members = self.world.members()
        self.world.drain_at = step
        self.world.unaware = {seat.member.pod for seat in members}
        for seat in members:
            self.announce_drain(seat)

    def announce_drain(self, seat: Seat) -> None:
        """Tell a running member the drain step, if it does not know it."""
        world = self.world
        if world.drain_at and seat.drain_known != world.drain_at and seat.state is State.RUNNING:
            world.reply(seat, WatchReply(action="drain", drain_at=world.drain_at))

    def restart(self, why: str) -> None:
        """Start the processes anew: they live, but training stands still."""
        if self.world.active:
            self.failures += 1
            self._fruitless = None
            self._spend(self.world.round_number, HANG, why)
            if self.world.closed is None:
                self.world.break_round(why, planned=False)

    def fail(self, verdict: str) -> None:
        """End the job: no restart helps."""
        self.world.tell(names.EVENT_JOB_FAILED, verdict, warning=True)
        self.world.close(names.EXIT_USER_ERROR, verdict)

    def _expire(self, now: float) -> None:
        world, limits = self.world, self.world.limits
        for seat in list(world.seats.values()):
            lease = limits.stop_lease if seat.state is State.STOPPING else limits.lease
            # While its request is open it waits for us, however long we were away ourselves;
            # a connection that leads nowhere shows when the answer is followed by nothing.
            silent = seat.ticket is None and now - seat.seen >= lease
            deaf = seat.told_at is not None and now - seat.told_at >= limits.acknowledge
            closed = seat.suspect is not None and now - seat.suspect >= limits.grace
            # A running member's connection may close because its sidecar restarts: only when
            # its peers noticed too (the round broke) is the closed connection a death.
            if silent or deaf or (closed and not world.in_round(seat)):
                cause = "its connection closed" if closed else "it fell silent"
                why = f"{world.name(seat)} was lost: {cause}"
                world.tell(names.EVENT_MEMBER_LOST, why, warning=True)
                self.forget(seat, why, planned=False)

    def _complete(self) -> None:
        world = self.world
        if not world.active or world.round is None:
            return
        seats = world.seats
        finished = seats.group(State.FINISHED, inside=True)
        if len(finished) == len(world.round.members):
            world.tell(names.EVENT_FINISHED, "all training processes ended with 0")
            world.close(names.EXIT_DONE, "")
        elif not any(seats.group(state, inside=True) for state in (State.RUNNING, State.STOPPING)):
            world.break_round("the world has drained", planned=True)

    def _change_world(self, now: float) -> None:
        world = self.world
        if not world.active:
            return
        if world.drain_at:
            if now >= world.drain_deadline:
                world.break_round("the drain took too long", planned=True)
            else:
                self._extend_drain(now)
        elif world.seats.group(State.FINISHED, inside=True):
            return
        elif world.highest >= world.expected:
            self.begin_drain(f"the job has {world.expected} pods now", now)
        elif leaving := world.seats.leaving():
            self.begin_drain(f"{_named(leaving)} ends", now)
        elif newcomers := world.newcomers():
            self._take_in(newcomers, now)

    def _take_in(self, newcomers: Collection[Seat], now: float) -> None:
        world, limits = self.world, self.world.limits
        members = len(world.round.members) if world.round else 0
        if limits.fitting(members + len(newcomers)) <= members:
            return  # they wait until a member goes, or others come
        everyone = members + len(newcomers) >= world.expected
        waited = now - next(iter(newcomers)).joined
        if waited >= limits.drain:
            world.break_round("a newcomer waits and no step was reported", planned=True)
        elif everyone or waited >= limits.settle:
            self.begin_drain(f"{_named(newcomers)} joins", now)

    def _extend_drain(self, now: float) -> None:
        """Put the drain off while somebody has not confirmed it and the step comes near."""
        world, notice = self.world, self.world.limits.drain_notice
        near = world.progress.drain_step(now, notice / 2)
        if not world.unaware or near is None or near <= world.drain_at:
            return
        gone = (State.WAITING, State.STOPPING, State.FINISHED)
        if not any(world.seats.group(state, inside=True) for state in gone):
            self._drain_at(world.progress.drain_step(now, notice) or near)

    def _form(self, now: float) -> None:
        before = self.world.number
        self.world.form(now)
        if self.world.number > before and self._fruitless:
            # Nobody died, nobody stepped, and yet the round broke: not for ever.
            (kind, reason), self._fruitless = self._fruitless, None
            self._spend(before, kind, reason)

    def _spend(self, round_number: int, kind: str, reason: str) -> None:
        if verdict := self.restarts.pay(round_number, kind, reason):
            self.fail(verdict)

    def _answer_polls(self, now: float) -> None:
        world, limits = self.world, self.world.limits
        poll = max(limits.poll, min(len(world.seats) / limits.most_polls, limits.longest_poll))
        for seat in world.seats.asked_until(now - poll):
            seat.seen = now
            if seat.state is State.RUNNING:
                world.reply(seat, WatchReply(action="none", drain_at=world.drain_at))
            else:
                world.reply(seat, JoinReply(action="wait"))


def _named(seats: Collection[Seat]) -> str:
    shown = ", ".join(seat.member.pod for seat in itertools.islice(seats, SHOWN_NEWCOMERS))
    return shown + (
        f" and {len(seats) - SHOWN_NEWCOMERS} more" if len(seats) > SHOWN_NEWCOMERS else ""
    )
