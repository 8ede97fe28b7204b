# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that reads leased data, in simulated time: ranks, a desk, and messages between them that
are lost, doubled and late; crashes, rollbacks, worlds of other sizes, coordinators that are lost.

The weights are a count for each slot of each epoch. They go back with a checkpoint.
"""

from __future__ import annotations

import collections
import dataclasses

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import (
    DataPlan,
    DataProgress,
    LeaseReply,
    LeaseRequest,
    Partition,
    RegisterData,
    RegisterReply,
    SlotSpan,
)
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.ledger import LeaseTerms
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity

MOST_IN_FLIGHT = 12


@dataclasses.dataclass
class Rank:
    """One training process."""

    holder: LeaseTracker
    union: ConsumedSet
    pipe: collections.deque[list[SlotSpan]] = dataclasses.field(default_factory=collections.deque)
    """Batches that are read ahead."""
    alive: bool = True


@dataclasses.dataclass
class Saved:
    """A checkpoint."""

    weights: collections.Counter[tuple[int, int]]
    progress: DataProgress
    aside: set[tuple[int, int]]


class SimulatedData:
    """All of it.

    Args:
        size: slots.
        shard: of them.
        epochs: that are trained.
        batch: slots of a rank's part of a step.
        lease_seconds: None: leases do not expire.
    """

    def __init__(
        self, size: int, shard: int, epochs: int, batch: int, lease_seconds: float | None
    ) -> None:
        self.plan = DataPlan("train", (Partition("", 0, size),), shard, epochs)
        self.batch, self.terms = batch, LeaseTerms(lease_seconds, tries=2, retry_seconds=1.0)
        self.now, self.round, self.processes = 0.0, 0, 0
        self.desks = 0
        self.lose_coordinator(0)
        self.weights: collections.Counter[tuple[int, int]] = collections.Counter()
        self.aside: set[tuple[int, int]] = set()
        """Epoch and slot of what was set aside, and reported as that."""
        self.saved = Saved(self.weights.copy(), DataProgress(), set())
        self.in_flight: list[tuple[Rank, object]] = []
        self.ranks: list[Rank] = []
        self.judged = 0
        """Batches with slots that had been used."""
        self.counts: collections.Counter[str] = collections.Counter()
        self.start(2)

    # -- what happens -----------------------------------------------------------------------------

    def start(self, world: int) -> None:
        """A round begins from the newest checkpoint."""
        for rank in self.ranks:
            rank.alive = False
        self.round += 1
        self.weights, self.aside = self.saved.weights.copy(), {*self.saved.aside}
        self.ranks = []
        for number in range(world):
            self.processes += 1
            union = ConsumedSet(codec.loads(DataProgress, codec.dumps(self.saved.progress)))
            place = WorkerIdentity(self.round, number, world, f"p{self.processes}")
            holder = LeaseTracker(self.plan, place, epoch=union.epoch, shared=False)
            self.ranks.append(Rank(holder, union))

    def act(self, operation: int, number: int, names: tuple[str, ...]) -> None:
        """One operation; a byte says which, another one on what."""
        name = names[operation % len(names)]
        self.counts[name] += 1
        getattr(self, name)(number)

    def send(self, number: int) -> None:
        """A process asks, or asks again."""
        if len(self.in_flight) < MOST_IN_FLIGHT:
            self._ask(self.ranks[number % len(self.ranks)], number // 7 % 4)

    def _ask(self, rank: Rank, wanted: int) -> None:
        if self._is_over(rank):
            return
        if rank.holder.registered:
            self.in_flight.append((rank, rank.holder.request(wanted)))
        else:
            self.in_flight.append((rank, rank.holder.registration(rank.union.progress())))

    def deliver(self, number: int) -> None:
        """A message arrives, some time, in any order."""
        if self.in_flight:
            self._arrive(*self.in_flight.pop(number % len(self.in_flight)))

    def deliver_next(self, _: int) -> None:
        """Messages arrive in their order."""
        self.deliver(0)

    def double(self, number: int) -> None:
        """A message arrives, and again later."""
        if self.in_flight:
            self._arrive(*self.in_flight[number % len(self.in_flight)])

    def lose(self, number: int) -> None:
        """A message does not arrive."""
        if self.in_flight:
            self.in_flight.pop(number % len(self.in_flight))

    def prefetch(self, number: int) -> None:
        """A process reads a batch ahead."""
        rank = self.ranks[number % len(self.ranks)]
        batch: list[SlotSpan] = []
        while (room := self.batch - sum(span.size for span in batch)) > 0:
            span = rank.holder.claim(room)
            if span is None:
                break
            batch.append(span)
        if batch:
            rank.pipe.append(batch)

    def fail(self, number: int) -> None:
        """A batch cannot be read: one of its spans is to blame."""
        rank = self.ranks[number % len(self.ranks)]
        if rank.pipe:
            bad, *rest = rank.pipe.popleft()
            rank.holder.report_unreadable(bad, "broken")
            rank.holder.return_spans(rest)

    def leave_loop(self, number: int) -> None:
        """A loop is left: what was read ahead comes again."""
        rank = self.ranks[number % len(self.ranks)]
        rank.pipe.clear()
        rank.holder.return_spans()

    def step(self, _: int = 0) -> None:
        """All ranks train on what they bring, or turn to the next epoch together."""
        if any(
            not rank.pipe and not rank.holder.queue and self._may_come(rank) for rank in self.ranks
        ):
            return
        for index, rank in enumerate(self.ranks):
            if not rank.pipe:
                self.prefetch(index)
        brought = [rank.pipe.popleft() if rank.pipe else [] for rank in self.ranks]
        if not any(brought):
            if all(rank.holder.finished for rank in self.ranks):
                self._set_aside(self.ranks[0].union)
                for rank in self.ranks:
                    rank.union.next_epoch()
                    rank.holder.next_epoch()
            return
        epoch = self.ranks[0].union.epoch
        answers = [rank.union.accept_batches(brought) for rank in self.ranks]
        assert all(answer == answers[0] for answer in answers)
        for rank, mine, counts in zip(self.ranks, brought, answers[0], strict=True):
            self.judged += not counts
            rank.holder.mark_used(mine, returned=() if counts else rank.union.missing(mine))
            if counts:
                self.weights.update((epoch, slot) for s in mine for slot in range(s.begin, s.end))
        assert max(self.weights.values()) == 1

    def save(self, _: int) -> None:
        """All ranks save; any one's part will do."""
        told = [rank.union.progress() for rank in self.ranks]
        assert all(progress.done == told[0].done for progress in told)
        self.saved = Saved(self.weights.copy(), told[-1], {*self.aside})

    def crash(self, number: int) -> None:
        """The world ends; one of any size goes on from the checkpoint."""
        self.start(number % 4 + 1)

    def lose_coordinator(self, _: int) -> None:
        """Another one takes its place, and knows nothing."""
        self.desks += 1
        self.desk = ShardDispatcher(self.terms, self.terms, name=f"{self.desks}.")

    def replace_coordinator(self, _: int) -> None:
        """The same, and what was under way breaks off."""
        self.in_flight.clear()
        self.lose_coordinator(0)

    def pass_time(self, number: int) -> None:
        """Leases may expire."""
        self.now += number % 4
        self.desk.tick(self.now)

    # -- the rest of the job, in peace ------------------------------------------------------------

    def finish(self) -> None:
        """Nothing happens any more; all epochs are trained."""
        for _ in range(10_000):
            if all(self._is_over(rank) for rank in self.ranks):
                return
            for rank in self.ranks:
                self._ask(rank, 2)
                self.deliver(0)
                self.deliver(0)
            for number in range(len(self.ranks)):
                self.step(number)
            self.pass_time(1)
        raise AssertionError([vars(rank.holder) for rank in self.ranks])

    def check(self) -> None:
        """Each slot of each epoch counts once, or was set aside by name."""
        for epoch in range(self.plan.epochs):
            for slot in range(self.plan.partitions[0].end):
                assert self.weights[epoch, slot] == 1 or (epoch, slot) in self.aside, (epoch, slot)

    def _set_aside(self, union: ConsumedSet) -> None:
        for begin, end in IntervalSet.from_text(union.progress().poison.get("", "")):
            self.aside |= {(union.epoch, slot) for slot in range(begin, end)}

    def _is_over(self, rank: Rank) -> bool:
        return rank.union.epoch >= self.plan.epochs

    def _may_come(self, rank: Rank) -> bool:
        """Whether an answer may still bring something."""
        holder = rank.holder
        return not self._is_over(rank) and not (holder.finished or holder.idle)

    def _arrive(self, rank: Rank, message: object) -> None:
        try:
            if isinstance(message, RegisterData):
                told = codec.loads(RegisterData, codec.dumps(message))
                reply: object = self.desk.register(told, self.now)
            elif isinstance(message, LeaseRequest):
                reply = self.desk.handle_request(
                    codec.loads(LeaseRequest, codec.dumps(message)), self.now
                )
            elif isinstance(message, LeaseReply):
                if rank.alive:
                    rank.holder.on_reply(message)
                    rank.union.add_poison(rank.holder.poison)
                return
            else:
                assert isinstance(message, RegisterReply)
                if rank.alive:
                    rank.holder.on_registered(message)
                return
        except errors.Conflict:
            return  # of another round, or late
        self.in_flight.append((rank, reply))
