# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A ledger of the slots of an epoch: who reads which, and which are used.

Every slot is to be done, leased to one worker, done, or set aside after failures. A ledger lives
for one generation (a round), begins with the restored state's progress, and refuses leases of
others. Its memory depends on ranges only, so 10^12 slots cost what 10^3 cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from rover_kf import errors
from rover_kf.api.data import DataPlan, DataProgress, SlotSpan
from rover_kf.data_sharding import partition
from rover_kf.data_sharding.interval_set import IntervalSet
from rover_kf.data_sharding.partition import PartitionState

LATE, DUPLICATE, STALE = "late", "duplicate", "stale"
"""Why a report counts for nothing: the slots were handed on, are done, are another generation's."""
MAX_POISONED = 64
"""Whose reasons are kept; their slots are all kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseTerms:
    """On which slots are lent."""

    lease_seconds: float | None = None
    """A silent worker then loses its leases; None: generations end sooner."""
    tries: int = 3
    """After so many failures a shard is set aside."""
    retry_seconds: float = 1.0
    """Before slots that could not be read are handed out again; times the failures so far."""
    by_speed: bool = False
    """Whether workers that do not wait for each other hold as much as their speed allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedSpan:
    """Slots of a report that count for nothing."""

    span: SlotSpan
    reason: str
    """LATE, DUPLICATE or STALE."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoisonedSpan:
    """A part of a shard that could not be read."""

    span: SlotSpan
    tries: int
    reason: str
    """Of the last failure."""
    unusable: bool = False
    """It was read, and nothing could be made of it."""


@dataclasses.dataclass(slots=True)
class WorkerLeases:
    """What the ledger knows of a worker."""

    held: dict[str, IntervalSet]
    expires: float | None = None
    used: int = 0
    """Slots that it has reported as done, in this generation."""

    @property
    def outstanding(self) -> int:
        """Slots that it has."""
        return sum(ranges.total for ranges in self.held.values())


# Guided self-scheduling (C. Polychronopoulos, D. Kuck: Guided Self-Scheduling, IEEE Transactions on
# Computers, 1987), each worker's part by what it has done so far: whoever is three times slower
# holds a third as much.
def guided_chunk(
    remaining: int, *, worker_used: int, used: int, workers: int, batch_slots: int
) -> int:
    """Return how many slots a worker may hold, those among them that it holds already.

    ``remaining`` are unused slots, leased or not. A worker uses ``batch_slots`` at once, and holds
    twice as many, to have some while it requests more.
    """
    # As long as little is known, all are taken for alike.
    known = used >= 4 * workers * max(batch_slots, 1)
    part = remaining * worker_used // used if known else remaining // workers
    return max(part // 2, 2 * max(batch_slots, 1))


class LeaseLedger:
    """A ledger of one data set in one generation, which is the number of the round.

    Raises:
        InputError: the plan has nothing to hand out.
        CheckpointError: the progress is of other data.
    """

    def __init__(
        self,
        plan: DataPlan,
        progress: DataProgress | None = None,
        *,
        generation: int = 0,
        terms: LeaseTerms | None = None,
    ) -> None:
        plan.check()
        self.plan, self.generation, self.terms = plan, generation, terms or LeaseTerms()
        self.workers: dict[str, WorkerLeases] = {}
        self.used_by_gone = 0
        self._used = 0
        """By those that are here."""
        self.poisoned: list[PoisonedSpan] = []
        self.unusable_records = 0
        """Records that were used and of which nothing could be made, in this generation."""
        self._failures: dict[tuple[str, int], int] = {}
        self._retries: list[tuple[float, SlotSpan]] = []
        known = progress or DataProgress()
        self.epoch = known.epoch
        self.partitions = partition.build_partitions(plan, known.done, known.poison)

    # -- handing out ------------------------------------------------------------------------------

    def lease(
        self, worker: str, generation: int, now: float, count: int = 1, *, batch_slots: int = 1
    ) -> tuple[SlotSpan, ...]:
        """Lease up to ``count`` spans to a worker, each of one shard.

        Near the end there are fewer, so that all workers end together, or none. Living workers have
        different names.

        Raises:
            Conflict: the generation is another one.
        """
        if generation != self.generation:
            raise errors.Conflict(
                f"generation {generation} of {self.plan.name!r} is over; it is now "
                f"{self.generation}"
            )
        account = self.mark_alive(worker, now)
        found: list[SlotSpan] = []
        bound = self.max_held(worker, batch_slots)
        room = max(bound - account.outstanding, 0) if bound else self.plan.shard * count
        room -= room % max(batch_slots, 1) if bound else 0
        for lane in partition.active_partitions(self.partitions.values()):
            most = min(count, self._fair_share(lane))
            while len(found) < most and room > 0 and (span := lane.claim(room)) is not None:
                account.held.setdefault(span.partition, IntervalSet()).add(span.begin, span.end)
                found.append(span)
                room -= span.size
        return tuple(found)

    def max_held(self, worker: str, batch_slots: int) -> int:
        """Return how many slots a worker shall hold at most now; 0: any number."""
        if not self.terms.by_speed:
            return 0
        now = partition.active_partitions(self.partitions.values())
        if not all(lane.partition.bounded for lane in now):
            return 0
        account = self.workers.get(worker)
        return guided_chunk(
            sum(lane.remaining for lane in now),
            worker_used=account.used if account else 0,
            used=self._used,
            workers=max(len(self.workers), 1),
            batch_slots=batch_slots,
        )

    def _fair_share(self, partition: PartitionState) -> int:
        """Half of what would be everybody's equal part of the rest; a stream has no end."""
        if not partition.partition.bounded:
            return len(self.workers) + partition.todo.total
        return max(1, partition.todo.total // (2 * self.plan.shard * max(len(self.workers), 1)))

    def adopt(self, worker: str, spans: Iterable[SlotSpan], now: float) -> None:
        """A worker has these of a ledger that is gone; what is not to be had any more it loses."""
        account = self.mark_alive(worker, now)
        for span in spans:
            todo = self._partition(span).todo
            for begin, end in todo.intersect(span.begin, span.end):
                todo.remove(begin, end)
                account.held.setdefault(span.partition, IntervalSet()).add(begin, end)

    def return_spans(self, worker: str, spans: Iterable[SlotSpan]) -> None:
        """A worker never got these."""
        account = self.workers.get(worker)
        for span in spans:
            held = account.held.get(span.partition, IntervalSet()) if account else IntervalSet()
            for begin, end in held.intersect(span.begin, span.end):
                held.remove(begin, end)
                self._partition(span).todo.add(begin, end)

    def mark_alive(self, worker: str, now: float) -> WorkerLeases:
        """A worker is alive: its leases last anew."""
        account = self.workers.setdefault(worker, WorkerLeases({}))
        if self.terms.lease_seconds is not None:
            account.expires = now + self.terms.lease_seconds
        return account

    def grow(self, ends: Mapping[str, int]) -> None:
        """Streams have more slots."""
        for name, end in ends.items():
            if name in self.partitions:
                self.partitions[name].grow(end)

    # -- what became of it ------------------------------------------------------------------------

    def report(
        self, worker: str, generation: int, spans: Iterable[SlotSpan]
    ) -> tuple[RejectedSpan, ...]:
        """Note the slots that a worker used; return those that count for nothing, and why."""
        refused: list[RejectedSpan] = []
        for span in spans:
            if generation != self.generation:
                refused.append(RejectedSpan(span, STALE))
                continue
            accepted = IntervalSet()
            lane, account = self._partition(span), self.workers.setdefault(worker, WorkerLeases({}))
            # What was taken from it and lent to nobody yet has been used all the same.
            for place in (account.held.get(span.partition, IntervalSet()), lane.todo):
                for begin, end in place.intersect(span.begin, span.end):
                    place.remove(begin, end)
                    count = lane.done.add(begin, end)
                    account.used += count
                    self._used += count
                    accepted.add(begin, end)
                    self._clear_failures(span.partition, begin, end)
            refused.extend(self._rejected_gaps(lane, span, accepted))
        return tuple(refused)

    def _clear_failures(self, name: str, begin: int, end: int) -> None:
        """Slots could be read: their shards have not failed."""
        if self._failures:
            shards = range(begin // self.plan.shard, (end - 1) // self.plan.shard + 1)
            for key in [k for k in self._failures if k[0] == name and k[1] in shards]:
                del self._failures[key]

    def _rejected_gaps(
        self, partition: PartitionState, span: SlotSpan, accepted: IntervalSet
    ) -> Iterable[RejectedSpan]:
        for begin, end in accepted.gaps(span.begin, span.end):
            known = partition.done.intersect(begin, end) == [(begin, end)]
            yield RejectedSpan(SlotSpan(span.partition, begin, end), DUPLICATE if known else LATE)

    def report_unreadable(
        self, worker: str, generation: int, span: SlotSpan, now: float, reason: str
    ) -> RejectedSpan | None:
        """Note unreadable slots; return why they count for nothing, if so.

        They are leased again later, or set aside.
        """
        if generation != self.generation:
            return RejectedSpan(span, STALE)
        lane, account = self._partition(span), self.workers.get(worker)
        held = account.held.get(span.partition) if account else None
        if held is None or held.intersect(span.begin, span.end) != [(span.begin, span.end)]:
            return RejectedSpan(span, LATE)
        held.remove(span.begin, span.end)
        key = (span.partition, span.begin // self.plan.shard)
        tries = self._failures[key] = self._failures.get(key, 0) + 1
        if tries < self.terms.tries:
            self._retries.append((now + tries * self.terms.retry_seconds, span))
        else:
            lane.poison.add(span.begin, span.end)
            self._record_poisoned(PoisonedSpan(span, tries, reason))
        return None

    def report_unusable(self, span: SlotSpan, reason: str) -> None:
        """Nothing could be made of records that are used."""
        self.unusable_records += span.size
        self._record_poisoned(PoisonedSpan(span, 1, reason, unusable=True))

    def _record_poisoned(self, poisoned: PoisonedSpan) -> None:
        self.poisoned = [*self.poisoned, poisoned][-MAX_POISONED:]

    def remove_worker(self, worker: str) -> None:
        """A worker is no more: what it had is handed on."""
        account = self.workers.pop(worker, None)
        if account is not None:
            self.used_by_gone += account.used
            self._used -= account.used
        for name, ranges in account.held.items() if account else ():
            for begin, end in ranges:
                self.partitions[name].todo.add(begin, end)

    def tick(self, now: float) -> None:
        """Hand on what has expired, and hand out again what could not be read."""
        if self.terms.lease_seconds is not None:
            late = [w for w, known in self.workers.items() if (known.expires or now) < now]
            for worker in late:
                self.remove_worker(worker)
        due = [span for at, span in self._retries if at <= now]
        if due:
            self._retries = [(at, span) for at, span in self._retries if at > now]
            for span in due:
                self.partitions[span.partition].todo.add(span.begin, span.end)

    # -- how far it is ----------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether each slot of the epoch is done, or set aside and reported. Streams never are."""
        return all(
            lane.partition.bounded and not lane.remaining for lane in self.partitions.values()
        )

    def next_epoch(self) -> None:
        """Begin the next epoch.

        Raises:
            Conflict: this one is not finished.
        """
        if not self.finished:
            raise errors.Conflict(f"epoch {self.epoch} of {self.plan.name!r} is not finished")
        self.epoch += 1
        self._failures.clear()
        for account in self.workers.values():
            account.held.clear()
        self.partitions = partition.build_partitions(self.plan, {}, {})

    def progress(self) -> DataProgress:
        """What is used: the state that a checkpoint keeps."""
        texts = {name: lane.done.to_text() for name, lane in self.partitions.items()}
        poison = {name: lane.poison.to_text() for name, lane in self.partitions.items()}
        return DataProgress(
            self.epoch,
            {name: text for name, text in texts.items() if text},
            {name: text for name, text in poison.items() if text},
        )

    def _partition(self, span: SlotSpan) -> PartitionState:
        if span.partition not in self.partitions:
            raise errors.ProtocolError(f"{self.plan.name!r} has no partition {span.partition!r}")
        return self.partitions[span.partition]
