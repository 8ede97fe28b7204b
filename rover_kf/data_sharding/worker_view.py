# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One training process's slots: leased, on their way to the loop, used.

Requests may be lost, repeated and late. One is under way at a time, and is repeated unchanged until
it is answered.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from rover_kf.api.data import (
    FINISHED,
    MAX_SPANS_PER_REQUEST,
    REGISTER,
    DataPlan,
    DataProgress,
    LeaseReply,
    LeaseRequest,
    RegisterData,
    RegisterReply,
    SlotSpan,
    UnreadableSpan,
)
from rover_kf.data_sharding.interval_set import IntervalSet


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of a process in its job."""

    round: int
    rank: int
    world_size: int
    process: str
    """Tells processes of one rank apart."""

    @property
    def worker(self) -> str:
        """Its name at the desk."""
        return f"{self.rank}/{self.process}"


class LeaseTracker:
    """The slots of one data set in one process.

    ``shared``: the ledger is the coordinator's alone. The process uses ``batch_slots`` at once.
    """

    def __init__(
        self,
        plan: DataPlan,
        identity: WorkerIdentity,
        *,
        epoch: int = 0,
        shared: bool,
        batch_slots: int = 1,
    ) -> None:
        self.plan, self.identity, self.epoch, self.shared = plan, identity, epoch, shared
        self._batch_slots, self._max_held = batch_slots, 0
        self.registered = False
        self.finished = False
        """Whether the coordinator has said that the epoch is over."""
        self.idle = False
        """Whether the last answer had nothing to read: all is with others."""
        self.queue: collections.deque[SlotSpan] = collections.deque()
        self.poison: Mapping[str, str] = {}
        self.ledger_epoch = epoch
        """That the ledger was in when it answered last."""
        self._in_flight: dict[str, IntervalSet] = {}
        """On their way to the loop."""
        self._done: dict[str, IntervalSet] = {}
        self._unreadable: list[UnreadableSpan] = []
        self._unusable: list[UnreadableSpan] = []
        """All three to be told of."""
        self._pending_request: LeaseRequest | None = None
        self._number, self._last_answer, self._generation, self._ticket = 0, "", 0, ""

    # -- the loop's side --------------------------------------------------------------------------

    @property
    def queued_slots(self) -> int:
        """Slots that are lent and not on their way yet."""
        return sum(span.size for span in self.queue)

    def missing_slots(self, ahead: int) -> int:
        """Return how many slots to request, to have ``ahead`` if all can."""
        if self.finished:
            return 0
        lacking = ahead - self.queued_slots
        if self._max_held:
            on_way = sum(ranges.total for ranges in self._in_flight.values())
            room = self._max_held - self.queued_slots - on_way
            lacking = min(lacking, room) if room >= self._batch_slots else 0
        return max(lacking, 0)

    def claim(self, max_slots: int) -> SlotSpan | None:
        """The next slots on their way; None if there are none now."""
        if not self.queue:
            return None
        first = self.queue.popleft()
        if first.size > max_slots:
            self.queue.appendleft(SlotSpan(first.partition, first.begin + max_slots, first.end))
            first = SlotSpan(first.partition, first.begin, first.begin + max_slots)
        self._in_flight.setdefault(first.partition, IntervalSet()).add(first.begin, first.end)
        return first

    def mark_used(self, spans: Iterable[SlotSpan], *, returned: Iterable[SlotSpan] = ()) -> None:
        """Note that spans on their way were used, but for the returned slots."""
        again = list(returned)
        for span in self._remove_in_flight(spans):
            done = self._done.setdefault(span.partition, IntervalSet())
            done.add(span.begin, span.end)
            for part in again:
                if part.partition == span.partition:
                    done.remove(part.begin, part.end)
        self._requeue(again)

    def report_unreadable(self, span: SlotSpan, reason: str) -> None:
        """These could not be read."""
        self._unreadable.extend(
            UnreadableSpan(known, reason) for known in self._remove_in_flight([span])
        )

    def report_unusable(self, records: Iterable[UnreadableSpan]) -> None:
        """Of these, which are used, nothing could be made."""
        self._unusable.extend(records)

    def return_spans(self, spans: Iterable[SlotSpan] | None = None) -> None:
        """These are not on their way any more, and come again; None: all that were."""
        self._requeue(
            self._remove_in_flight(list(_spans(self._in_flight)) if spans is None else spans)
        )

    def _requeue(self, spans: Iterable[SlotSpan]) -> None:
        """They are the next, cut where shards begin: what cannot be read is of one."""
        shard, cut = self.plan.shard, []
        for span in spans:
            marks = range((span.begin // shard + 1) * shard, span.end, shard)
            ends = [*marks, span.end]
            cut += [
                SlotSpan(span.partition, begin, end)
                for begin, end in zip([span.begin, *marks], ends, strict=True)
            ]
        self.queue.extendleft(reversed(cut))

    def _remove_in_flight(self, spans: Iterable[SlotSpan]) -> list[SlotSpan]:
        """Take off the way what is on it: a ledger that began anew may have taken it back."""
        found: list[SlotSpan] = []
        for span in spans:
            known = self._in_flight.get(span.partition, IntervalSet())
            for begin, end in known.intersect(span.begin, span.end):
                known.remove(begin, end)
                found.append(SlotSpan(span.partition, begin, end))
        return found

    def next_epoch(self) -> None:
        """The next epoch."""
        self.epoch += 1
        self.finished = self.idle = False
        self._max_held = 0
        self.poison = {}

    def rejoin_ledger(self) -> None:
        """Go back to the epoch that the ledger is in; whatever is held is of one that is undone."""
        self.epoch = self.ledger_epoch - 1
        self.queue.clear()
        self._in_flight.clear()
        self._done, self._unreadable, self._unusable = {}, [], []
        self.next_epoch()

    # -- the coordinator's side -------------------------------------------------------------------

    @property
    def has_reports(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._done or self._unreadable or self._unusable)

    @property
    def has_unacknowledged(self) -> bool:
        """Whether something was not heard of yet: to be told, or told and not answered."""
        return self.has_reports or bool(
            self._pending_request
            and (self._pending_request.done or self._pending_request.unreadable)
        )

    def registration(self, progress: DataProgress) -> RegisterData:
        """What a coordinator is told that does not know this process."""
        place = self.identity
        return RegisterData(
            self.plan,
            place.round,
            place.rank,
            place.world_size,
            place.worker,
            progress,
            tuple(self._held_spans()),
            self.shared,
            self._generation,
            self._ticket,
        )

    def _held_spans(self) -> Iterable[SlotSpan]:
        # What is to be told of is held, too: else the report would count for nothing.
        yield from (*self.queue, *(unread.span for unread in self._unreadable))
        yield from (*_spans(self._in_flight), *_spans(self._done))

    def on_registered(self, reply: RegisterReply) -> None:
        """The coordinator has taken the registration, or wants it again with a ticket."""
        self._ticket = reply.ticket
        self.registered = self.registered or not reply.ticket

    def request(self, max_spans: int, ends: Mapping[str, int] | None = None) -> LeaseRequest:
        """What to ask now: the same as before if that was not answered."""
        if self._pending_request is None:
            self._number += 1
            self._pending_request = LeaseRequest(
                name=self.plan.name,
                round=self.identity.round,
                worker=self.identity.worker,
                generation=self._generation,
                number=self._number,
                epoch=self.epoch,
                last_answer=self._last_answer,
                max_spans=min(max_spans, MAX_SPANS_PER_REQUEST),
                batch_slots=self._batch_slots,
                done=tuple(_spans(self._done)),
                unreadable=tuple(self._unreadable),
                unusable=tuple(self._unusable),
                ends=dict(ends or {}),
            )
            self._done, self._unreadable, self._unusable = {}, [], []
        return self._pending_request

    def on_reply(self, reply: LeaseReply) -> None:
        """Take an answer; one of another request counts for nothing."""
        asked = self._pending_request
        if asked is None or reply.number != asked.number:
            return
        self._pending_request = None
        if reply.state == REGISTER or not reply.generation:
            self._on_unknown_worker(asked, reply)
            return
        self._generation, self._last_answer = reply.generation, reply.answer
        self.ledger_epoch = reply.epoch if reply.epoch >= 0 else self.epoch
        if asked.epoch == self.epoch:
            self._add_leases(reply.leases)
            self.poison = reply.poison
            self.finished = reply.state == FINISHED
            self._max_held = reply.max_held
        self.idle = bool(asked.max_spans) and not reply.leases

    def _add_leases(self, leases: Iterable[SlotSpan]) -> None:
        # What expired and was lent to this process again it may still have.
        known: dict[str, IntervalSet] = {}
        for span in self._held_spans():
            known.setdefault(span.partition, IntervalSet()).add(span.begin, span.end)
        for span in leases:
            own = known.get(span.partition, IntervalSet())
            gaps = own.gaps(span.begin, span.end)
            self.queue.extend(SlotSpan(span.partition, begin, end) for begin, end in gaps)

    def _on_unknown_worker(self, request: LeaseRequest, reply: LeaseReply) -> None:
        """There is no ledger that has heard the request, or none that knows this process."""
        self.registered, self.idle, self._max_held = reply.state != REGISTER, False, 0
        if reply.generation:
            # Another ledger runs: what this one was lent is not its own any more.
            self._generation = reply.generation
            self.queue.clear()
            self._in_flight.clear()
            self._done, self._unreadable, self._unusable = {}, [], []
            return
        for span in request.done:
            self._done.setdefault(span.partition, IntervalSet()).add(span.begin, span.end)
        self._unreadable = [*request.unreadable, *self._unreadable]
        self._unusable = [*request.unusable, *self._unusable]


def merge_spans(spans: Iterable[SlotSpan]) -> tuple[SlotSpan, ...]:
    """The same slots in the fewest spans, by partition."""
    found: dict[str, IntervalSet] = {}
    for span in spans:
        found.setdefault(span.partition, IntervalSet()).add(span.begin, span.end)
    return tuple(_spans(found))


def _spans(done: Mapping[str, IntervalSet]) -> Iterable[SlotSpan]:
    return (SlotSpan(name, begin, end) for name, ranges in done.items() for begin, end in ranges)
