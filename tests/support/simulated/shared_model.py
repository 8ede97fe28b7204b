# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job whose processes write to one model without waiting for each other, in simulated time.

Workers crash and come again alone; when the first one does, the model goes back to its checkpoint.
"""

from __future__ import annotations

from rover_kf.api.data import DataProgress
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.ledger import LeaseLedger
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from tests.support.simulated.leased_data import Rank, Saved, SimulatedData

WORKERS = 3


class SimulatedShared(SimulatedData):
    """Besides the weights it counts what may be used again, as the guarantee states it."""

    def start(self, world: int) -> None:
        """All processes; called once."""
        self.repeats, self.lent = 0, 0
        self.ranks = [self._process(number) for number in range(world)]

    def _process(self, number: int) -> Rank:
        self.processes += 1
        place = WorkerIdentity(1, number, WORKERS, f"p{self.processes}")
        progress = self.saved.progress if number == 0 else DataProgress()
        holder = LeaseTracker(self.plan, place, epoch=progress.epoch, shared=True)
        return Rank(holder, ConsumedSet(progress))

    def step(self, number: int = 0) -> None:
        """One worker trains on a batch; the model has it at once, unless it is being restored."""
        if not self.ranks[0].holder.registered:
            return
        rank = self.ranks[number % len(self.ranks)]
        if not rank.pipe:
            self.prefetch(number)
        if rank.pipe:
            batch = rank.pipe.popleft()
            epoch = rank.holder.epoch
            self.weights.update((epoch, s) for span in batch for s in range(span.begin, span.end))
            rank.holder.mark_used(batch)
            if epoch == rank.union.epoch:
                rank.union.accept_batches([batch])
        elif rank.holder.finished and not self._is_over(rank):
            self._set_aside(rank.union)
            rank.union.next_epoch()
            rank.holder.next_epoch()

    def save(self, _: int) -> None:
        """The first worker asks for the progress, then the model is saved."""
        ledger = self._ledger()
        if ledger is None or not self.ranks[0].holder.registered:
            return
        progress = ledger.progress()
        if self.ranks[0].union.epoch == progress.epoch:
            self.ranks[0].union = ConsumedSet.from_progress(
                [progress, self.ranks[0].union.progress()]
            )
            self.lent = sum(self._held(rank) for rank in self.ranks)
            self.saved = Saved(self.weights.copy(), progress, {*self.aside})

    def crash(self, number: int) -> None:
        """One worker dies; a new process takes its place."""
        number %= len(self.ranks)
        self.ranks[number].alive = False
        self.repeats += self._held(self.ranks[number])
        self.ranks[number] = self._process(number)
        if number == 0:
            # The model may have had more than was told when it was saved.
            self.repeats += self.lent
            self.weights, self.aside = self.saved.weights.copy(), {*self.saved.aside}

    def _arrive(self, rank: Rank, message: object) -> None:
        held = sum(self._held(other) for other in self.ranks[1:])
        before = self._ledger()
        super()._arrive(rank, message)
        if self._ledger() is not before:
            # What is on its way to the others' loops is used, and lent anew.
            self.repeats += held

    def _ledger(self) -> LeaseLedger | None:
        counter = self.desk.counters.get("train")
        return counter.ledger if counter else None

    def _held(self, rank: Rank) -> int:
        """Slots that are lent to it, as it or the ledger knows."""
        told = sum(span.size for span in rank.holder.registration(DataProgress()).held)
        ledger = self._ledger()
        if ledger is None:
            return told
        account = ledger.workers.get(rank.holder.identity.worker)
        return max(told, account.outstanding if account else 0)

    def check(self) -> None:
        """Each slot counts, and no more of them twice than the guarantee says."""
        slots = [
            (e, s) for e in range(self.plan.epochs) for s in range(self.plan.partitions[0].end)
        ]
        for slot in slots:
            assert self.weights[slot] or slot in self.aside, slot
        again = sum(max(self.weights[slot] - 1, 0) for slot in slots)
        self.counts["repeats"] += again
        self.counts["bound"] += self.repeats
        assert again <= self.repeats
