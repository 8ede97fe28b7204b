# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Members and the current round, with the transitions of the rendezvous between them.

A round is *active* from its start to its end. Ranks follow node_rank. A start waits for the
``awaited_ranks``: everyone expected at first; a lost rank only when it has joined again.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api import names
from rover_kf.api.membership import JoinReply, Round, WatchReply
from rover_kf.elastic.rendezvous.effects import (
    Effect,
    EmitEvent,
    JobClosed,
    RoundEnded,
    RoundStarted,
    SendReply,
    truncate,
)
from rover_kf.elastic.rendezvous.member_index import MemberIndex, MemberPhase, MemberState
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits

MIN_STEP_SECONDS = 1e-3
"""Seconds; a step taken as shorter would make the drain step absurd."""
LONGEST_SILENCE = 2.0
"""Seconds; reports come each second, a longer silence is a pause, not steps unseen."""


@dataclasses.dataclass(slots=True)
class StepProgress:
    """Steps as they were reported."""

    any_reported: bool = False
    """Whether any step was ever reported: whether the script reports at all."""
    round: int = 0
    step: int | None = None
    """Newest step of that round; None before the first."""
    began: float = 0.0
    step_ended_at: float = 0.0
    step_seconds: float = 1.0

    def begin(self, number: int, now: float) -> None:
        """A new round: nothing of it was seen yet."""
        self.round, self.step, self.began = number, None, now

    def observe(self, number: int, step: int, *, seconds: float, ended_at: float) -> None:
        """A rank ended a step; news of another round are ignored."""
        self.any_reported = True
        if number == self.round and (self.step is None or step > self.step):
            self.step, self.step_ended_at = step, ended_at
            self.step_seconds = max(seconds, MIN_STEP_SECONDS)

    def drain_step(self, now: float, notice: float) -> int | None:
        """A step that no rank has passed yet and all learn of in time; None if none is known."""
        if self.step is None:
            return None
        unseen = min(max(now - self.step_ended_at, 0.0), LONGEST_SILENCE) / self.step_seconds
        return self.step + 2 + math.floor(unseen) + math.ceil(notice / self.step_seconds)


class World:
    """What is known of the members, and the round that they form."""

    def __init__(self, limits: RendezvousLimits) -> None:
        self.limits = limits
        self.member_index = MemberIndex()
        self.round: Round | None = None
        self.number = limits.first_round - 1
        self.generation = 0
        """Of the coordinator; rounds that it starts have it."""
        self.active = False
        self.expected = limits.nodes
        self.awaited_ranks = set(range(limits.nodes))
        self.highest_node_rank = -1
        """Greatest node rank of the newest round."""
        self.drain_at = 0
        self.drain_deadline = 0.0
        self.unconfirmed: set[str] = set()
        """Pods of members that have not confirmed the drain."""
        self.progress = StepProgress()
        self.closed: JobClosed | None = None
        self.not_before = 0.0
        """No round starts earlier: failures in a row are given time."""
        self.end_reason = ""
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

    def emit_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an event."""
        self._effects.append(EmitEvent(reason, message, warning))

    def send_reply(self, ticket: int, reply: JoinReply | WatchReply) -> None:
        """Answer a request that no seat holds."""
        self._effects.append(SendReply(ticket, reply))

    def reply(self, seat: MemberState, reply: JoinReply | WatchReply) -> None:
        """Answer the seat's open request; a seat without one will ask again."""
        ticket = self.member_index.release_request(seat)
        if ticket is not None:
            self.send_reply(ticket, reply)

    @property
    def lacks_pods(self) -> bool:
        """Whether all who are here wait, and no round can start without others."""
        waiting = self.member_index.group(MemberPhase.WAITING, in_round=False)
        held = self.now < self.not_before
        return not self.active and not held and len(waiting) == len(self.member_index)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Node ranks that the next round waits for and that are not here; none while one runs."""
        if self.active or self.closed:
            return ()
        present = {seat.member.node_rank for seat in self.member_index.values()}
        return tuple(sorted(self.awaited_ranks - present))

    def members(self) -> list[MemberState]:
        """Seats of the active round's members."""
        return [
            seat for seat in self.member_index.values() if self.member_index.in_active_round(seat)
        ]

    def label(self, seat: MemberState) -> str:
        """The seat's pod, with its ranks in the newest round."""
        return self.round.member_label(seat.member) if self.round else seat.member.pod

    def start_reply(self) -> JoinReply:
        """The order to start the current round."""
        return JoinReply(action="start", round=self.round)

    def end_round(self, reason: str, *, planned: bool) -> None:
        """End the active round: whoever runs is told to stop and join again.

        An order can go to a launcher that died a moment ago, so its first word is waited for
        only shortly (``told_at``).
        """
        if not self.active:
            return
        self.end_reason = reason
        members = self.members()
        self._deactivate()
        self._effects.append(RoundEnded(planned, reason))
        for seat in members:
            if seat.phase is MemberPhase.RUNNING:
                self.reply(seat, WatchReply(action="restart", reason=reason))
            elif seat.phase is MemberPhase.FINISHED:
                self.reply(seat, JoinReply(action="retry", reason=reason))
            else:
                continue
            self.member_index.set_phase(seat, MemberPhase.STOPPING)
            seat.stop_sent_at = max(self.now, seat.last_seen)

    def remove(self, seat: MemberState) -> None:
        """Forget a member; nobody waits for its rank until it joins again."""
        if seat.phase is MemberPhase.RUNNING:
            self.reply(seat, WatchReply(action="restart", reason="it was taken for lost"))
        self.reply(seat, JoinReply(action="retry", reason="it was taken for lost"))
        self.member_index.remove(seat)
        self.unconfirmed.discard(seat.member.pod)
        self.awaited_ranks.discard(seat.member.node_rank)

    def dismiss_unexpected(self) -> None:
        """Nobody is waited for who is not expected, and such a one does not wait here."""
        self.awaited_ranks = {rank for rank in self.awaited_ranks if rank < self.expected}
        for seat in list(self.member_index.values()):
            if seat.phase is MemberPhase.WAITING and seat.member.node_rank >= self.expected:
                reason = f"the job has {self.expected} pods now"
                self.reply(seat, JoinReply(action="drained", reason=reason))
                self.remove(seat)

    def close(self, exit_code: int, verdict: str) -> None:
        """End the job: every open request is answered, every later one too."""
        self.closed = JobClosed(exit_code, verdict)
        self._deactivate()
        self._effects.append(self.closed)
        for seat in self.member_index.values():
            kind = WatchReply if seat.phase is MemberPhase.RUNNING else JoinReply
            self.reply(seat, kind(action="closed", exit_code=exit_code, reason=verdict))

    def adopt(self, world: Round, now: float) -> None:
        """Take over a round that runs already: this coordinator is new, the training is not."""
        self._activate(world, now)
        self.expected = self.highest_node_rank + 1
        self.awaited_ranks = {member.node_rank for member in world.members}
        # It did not begin now, but steps of a round that nobody was told of would count for none.
        self._effects.append(RoundStarted(world, adopted=True))
        conflict = False
        for member in world.members:
            known = self.member_index.get(member.pod)
            conflict = conflict or known is not None
            if known is None:
                # Seen in the future: each member has a lease more to find this coordinator.
                self.member_index.add(
                    MemberState(member, MemberPhase.RUNNING, last_seen=now + self.limits.lease)
                )
        for seat in self.member_index.values():
            self.awaited_ranks.add(seat.member.node_rank)
            self.expected = max(self.expected, seat.member.node_rank + 1)
        if conflict:
            self.end_round("a member of the round had started anew", planned=False)

    def start_if_ready(self, now: float) -> None:
        """Start a round if everyone who is waited for is ready."""
        if now < self.not_before:
            return
        waiting = self.member_index.group(MemberPhase.WAITING, in_round=False)
        last = self.member_index.latest(MemberPhase.WAITING, in_round=False)
        count = len(waiting)
        size = self.limits.largest_world(count)
        if last is None or not size or count < len(self.member_index):
            return
        outwaited = now - last.joined >= self.limits.patience
        if size < self.limits.largest_world(len(self.awaited_ranks)) and not outwaited:
            return  # whoever waits is awaited, too: somebody is missing
        ranks = {seat.member.node_rank for seat in waiting}
        if not outwaited and size < self.limits.largest_world(len(self.awaited_ranks | ranks)):
            return
        self.awaited_ranks = ranks
        ordered = sorted(waiting, key=lambda seat: (seat.member.node_rank, seat.member.pod))
        self._start(ordered[:size], now)

    def _start(self, chosen: list[MemberState], now: float) -> None:
        world = Round(
            number=self.number + 1,
            members=tuple(seat.member for seat in chosen),
            world_size=sum(seat.member.processes for seat in chosen),
            store_host=chosen[0].store_host,
            store_port=chosen[0].store_port,
            generation=self.generation,
        )
        self._activate(world, now)
        self._effects.append(RoundStarted(world))
        self._emit_round_started(world, idle=len(self.member_index) - len(chosen))
        order = self.start_reply()
        for seat in chosen:
            self.member_index.set_phase(seat, MemberPhase.RUNNING)
            seat.mark_alive(now)
            self.reply(seat, order)

    def _emit_round_started(self, world: Round, *, idle: int) -> None:
        left = f"; {idle} more would make no allowed size" if idle else ""
        why = truncate(self.end_reason)
        before = f"; the one before ended: {why}" if why else ""
        self.end_reason = ""
        message = (
            f"round {world.number}: {world.world_size} processes in {len(world.members)} pods"
            f"{left}{before}"
        )
        self.emit_event(names.EVENT_WORLD_FORMED, message)

    def _activate(self, world: Round, now: float) -> None:
        self.round, self.active = world, True
        self.number = max(self.number, world.number)
        self.highest_node_rank = max(member.node_rank for member in world.members)
        self.drain_at = 0
        self.member_index.begin_round(world.members)
        self.progress.begin(world.number, now)

    def _deactivate(self) -> None:
        self.active, self.drain_at = False, 0
        self.member_index.end_round()
