# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one training process has of the slots: lent, on their way to the loop, used; pure.

Makes the requests and takes the answers; who carries them may lose, repeat and delay them. One
request is under way at a time, and it is asked again unchanged until it is answered.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from rover_kf.api.data import MOST_AT_ONCE, DataPlan, Progress, Span
from rover_kf.api.leases import (
    FINISHED,
    REGISTER,
    LeaseReply,
    LeaseRequest,
    RegisterData,
    Registered,
    Unread,
)
from rover_kf.data_sharding.interval_set import Ranges


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Of a process in its job."""

    round: int
    rank: int
    world_size: int
    process: str
    """Tells processes of one rank apart."""

    @property
    def worker(self) -> str:
        """Its name at the desk."""
        return f"{self.rank}/{self.process}"


class Holder:
    """Of one data set.

    Args:
        plan: what there is.
        place: of this process.
        epoch: that it reads now.
        shared: whether the ledger is the coordinator's alone.
        least: slots that it uses at once.
    """

    def __init__(
        self, plan: DataPlan, place: Place, *, epoch: int = 0, shared: bool, least: int = 1
    ) -> None:
        self.plan, self.place, self.epoch, self.shared = plan, place, epoch, shared
        self._least, self._most = least, 0
        self.registered = False
        self.finished = False
        """Whether the coordinator has said that the epoch is over."""
        self.idle = False
        """Whether the last answer had nothing to read: all is with others."""
        self.queue: collections.deque[Span] = collections.deque()
        self.poison: Mapping[str, str] = {}
        self.ledger_epoch = epoch
        """That the ledger was in when it answered last."""
        self._out: dict[str, Ranges] = {}
        """On their way to the loop."""
        self._done: dict[str, Ranges] = {}
        self._unread: list[Unread] = []
        self._spoilt: list[Unread] = []
        """All three to be told of."""
        self._asked: LeaseRequest | None = None
        self._number, self._taken, self._generation, self._ticket = 0, "", 0, ""

    # -- the loop's side --------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Slots that are lent and not on their way yet."""
        return sum(span.size for span in self.queue)

    def lacking(self, ahead: int) -> int:
        """Slots that are to be asked for now.

        Args:
            ahead: that shall always be lent, as long as there is enough for all.
        """
        if self.finished:
            return 0
        lacking = ahead - self.waiting
        if self._most:
            on_way = sum(ranges.total for ranges in self._out.values())
            room = self._most - self.waiting - on_way
            lacking = min(lacking, room) if room >= self._least else 0
        return max(lacking, 0)

    def take(self, most: int) -> Span | None:
        """The next slots on their way; None if there are none now."""
        if not self.queue:
            return None
        first = self.queue.popleft()
        if first.size > most:
            self.queue.appendleft(Span(first.partition, first.begin + most, first.end))
            first = Span(first.partition, first.begin, first.begin + most)
        self._out.setdefault(first.partition, Ranges()).add(first.begin, first.end)
        return first

    def used(self, spans: Iterable[Span], *, but: Iterable[Span] = ()) -> None:
        """These are used.

        Args:
            spans: that were on their way.
            but: slots of them that come again.
        """
        again = list(but)
        for span in self._came(spans):
            done = self._done.setdefault(span.partition, Ranges())
            done.add(span.begin, span.end)
            for part in again:
                if part.partition == span.partition:
                    done.remove(part.begin, part.end)
        self._again(again)

    def unread(self, span: Span, reason: str) -> None:
        """These could not be read."""
        self._unread.extend(Unread(known, reason) for known in self._came([span]))

    def spoilt(self, records: Iterable[Unread]) -> None:
        """Of these, which are used, nothing could be made."""
        self._spoilt.extend(records)

    def give_back(self, spans: Iterable[Span] | None = None) -> None:
        """These are not on their way any more, and come again; None: all that were."""
        self._again(self._came(list(_spans(self._out)) if spans is None else spans))

    def _again(self, spans: Iterable[Span]) -> None:
        """They are the next, cut where shards begin: what cannot be read is of one."""
        shard, cut = self.plan.shard, []
        for span in spans:
            marks = range((span.begin // shard + 1) * shard, span.end, shard)
            ends = [*marks, span.end]
            cut += [
                Span(span.partition, begin, end)
                for begin, end in zip([span.begin, *marks], ends, strict=True)
            ]
        self.queue.extendleft(reversed(cut))

    def _came(self, spans: Iterable[Span]) -> list[Span]:
        """Take off the way what is on it: a ledger that began anew may have taken it back."""
        found: list[Span] = []
        for span in spans:
            known = self._out.get(span.partition, Ranges())
            for begin, end in known.within(span.begin, span.end):
                known.remove(begin, end)
                found.append(Span(span.partition, begin, end))
        return found

    def turn(self) -> None:
        """The next epoch."""
        self.epoch += 1
        self.finished = self.idle = False
        self._most = 0
        self.poison = {}

    def follow(self) -> None:
        """Go back to the epoch that the ledger is in; whatever is held is of one that is undone."""
        self.epoch = self.ledger_epoch - 1
        self.queue.clear()
        self._out.clear()
        self._done, self._unread, self._spoilt = {}, [], []
        self.turn()

    # -- the coordinator's side -------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._done or self._unread or self._spoilt)

    @property
    def has_untold(self) -> bool:
        """Whether something was not heard of yet: to be told, or told and not answered."""
        return self.has_news or bool(self._asked and (self._asked.done or self._asked.unread))

    def registration(self, progress: Progress) -> RegisterData:
        """What a coordinator is told that does not know this process."""
        place = self.place
        return RegisterData(
            self.plan,
            place.round,
            place.rank,
            place.world_size,
            place.worker,
            progress,
            tuple(self._held()),
            self.shared,
            self._generation,
            self._ticket,
        )

    def _held(self) -> Iterable[Span]:
        # What is to be told of is held, too: else the report would count for nothing.
        yield from (*self.queue, *(unread.span for unread in self._unread))
        yield from (*_spans(self._out), *_spans(self._done))

    def knows(self, reply: Registered) -> None:
        """The coordinator has taken the registration, or wants it again with a ticket."""
        self._ticket = reply.ticket
        self.registered = self.registered or not reply.ticket

    def request(self, wanted: int, ends: Mapping[str, int] | None = None) -> LeaseRequest:
        """What to ask now: the same as before if that was not answered."""
        if self._asked is None:
            self._number += 1
            self._asked = LeaseRequest(
                name=self.plan.name,
                round=self.place.round,
                worker=self.place.worker,
                generation=self._generation,
                number=self._number,
                epoch=self.epoch,
                taken=self._taken,
                wanted=min(wanted, MOST_AT_ONCE),
                least=self._least,
                done=tuple(_spans(self._done)),
                unread=tuple(self._unread),
                spoilt=tuple(self._spoilt),
                ends=dict(ends or {}),
            )
            self._done, self._unread, self._spoilt = {}, [], []
        return self._asked

    def absorb(self, reply: LeaseReply) -> None:
        """Take an answer; one of another request counts for nothing."""
        asked = self._asked
        if asked is None or reply.number != asked.number:
            return
        self._asked = None
        if reply.state == REGISTER or not reply.generation:
            self._forgotten(asked, reply)
            return
        self._generation, self._taken = reply.generation, reply.answer
        self.ledger_epoch = reply.epoch if reply.epoch >= 0 else self.epoch
        if asked.epoch == self.epoch:
            self._receive(reply.leases)
            self.poison = reply.poison
            self.finished = reply.state == FINISHED
            self._most = reply.most
        self.idle = bool(asked.wanted) and not reply.leases

    def _receive(self, leases: Iterable[Span]) -> None:
        # What expired and was lent to this process again it may still have.
        known: dict[str, Ranges] = {}
        for span in self._held():
            known.setdefault(span.partition, Ranges()).add(span.begin, span.end)
        for span in leases:
            own = known.get(span.partition, Ranges())
            gaps = own.gaps(span.begin, span.end)
            self.queue.extend(Span(span.partition, begin, end) for begin, end in gaps)

    def _forgotten(self, asked: LeaseRequest, reply: LeaseReply) -> None:
        """There is no ledger that has heard the request, or none that knows this process."""
        self.registered, self.idle, self._most = reply.state != REGISTER, False, 0
        if reply.generation:
            # Another ledger runs: what this one was lent is not its own any more.
            self._generation = reply.generation
            self.queue.clear()
            self._out.clear()
            self._done, self._unread, self._spoilt = {}, [], []
            return
        for span in asked.done:
            self._done.setdefault(span.partition, Ranges()).add(span.begin, span.end)
        self._unread = [*asked.unread, *self._unread]
        self._spoilt = [*asked.spoilt, *self._spoilt]


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same slots in the fewest spans, by partition."""
    found: dict[str, Ranges] = {}
    for span in spans:
        found.setdefault(span.partition, Ranges()).add(span.begin, span.end)
    return tuple(_spans(found))


def _spans(done: Mapping[str, Ranges]) -> Iterable[Span]:
    return (Span(name, begin, end) for name, ranges in done.items() for begin, end in ranges)
