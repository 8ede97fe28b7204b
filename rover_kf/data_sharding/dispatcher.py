# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A coordinator's ledgers: ranks register data sets there and request slots.

Nothing outlives the coordinator, since the ranks' states have what is used. A new coordinator
answers ``register``, and continues when all ranks of the round have reported what they used and
hold.
"""

from __future__ import annotations

import dataclasses
import itertools

from rover_kf import errors
from rover_kf.api.data import (
    FINISHED,
    GO,
    MAX_SPANS_PER_REQUEST,
    REGISTER,
    WAIT,
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
from rover_kf.data_sharding.ledger import LeaseLedger, LeaseTerms

MAX_DATA_SETS = 64
"""Of a job; more are refused, since each costs memory."""
_DIGITS = 9
"""Of a rank, at most."""
SHARED_LEASE_SECONDS = 30.0
"""Lease of a shared ledger: workers report often (rover_kf.trainer.data.lease_prefetcher)."""


@dataclasses.dataclass(slots=True)
class LeaseCounter:
    """The ledger of one data set in one round."""

    plan: DataPlan
    round: int
    world_size: int
    shared: bool
    ranks: dict[int, RegisterData] = dataclasses.field(default_factory=dict)
    ledger: LeaseLedger | None = None
    """None: not all ranks have registered."""
    last_replies: dict[str, LeaseReply] = dataclasses.field(default_factory=dict)
    """Of each worker the last one."""
    tickets: dict[int, str] = dataclasses.field(default_factory=dict)
    """By rank, since its last process came: with which another one takes its place."""


class ShardDispatcher:
    """A dispatcher of one coordinator's ledgers.

    ``terms`` are those of ledgers that are not shared; no other coordinator's dispatcher has its
    name.
    """

    def __init__(
        self, terms: LeaseTerms | None = None, shared: LeaseTerms | None = None, name: str = ""
    ) -> None:
        self._name, self._answers = name, itertools.count(1)
        self._terms = terms or LeaseTerms()
        self._shared = shared or LeaseTerms(SHARED_LEASE_SECONDS, by_speed=True)
        self.counters: dict[str, LeaseCounter] = {}

    # -- registering ------------------------------------------------------------------------------

    def register(self, registration: RegisterData, now: float) -> RegisterReply:
        """Register a rank's data; the ledger begins when all ranks of the round have.

        The reply has a ticket if another process of the rank is known and nothing has happened yet.

        Raises:
            Conflict: its round is over.
            InputError: its plan is none, or another one than other ranks have.
        """
        counter = self._counter_for(registration)
        before = counter.ranks.get(registration.rank)
        if before is not None and before.worker != registration.worker:
            ticket = counter.tickets.setdefault(registration.rank, self._new_answer_id())
            if registration.ticket != ticket:
                return RegisterReply(ticket)
            del counter.tickets[registration.rank]
        counter.ranks[registration.rank] = registration
        if (
            before is not None
            and before.worker == registration.worker
            and counter.ledger is not None
        ):
            return RegisterReply()  # the same again: its answer was lost
        if before is not None and counter.ledger is not None:
            counter.ledger.remove_worker(before.worker)
            counter.last_replies.pop(before.worker, None)
        all_here = counter.ledger is None and len(counter.ranks) == registration.world_size
        if (registration.rank == 0) if registration.shared else all_here:
            self._open_ledger(counter, now)
        elif counter.ledger is not None and registration.generation == counter.ledger.generation:
            counter.ledger.adopt(registration.worker, registration.held, now)
        return RegisterReply()

    def _new_answer_id(self) -> str:
        """A name that no other answer of any coordinator has."""
        return f"{self._name}{next(self._answers)}"

    def _counter_for(self, registration: RegisterData) -> LeaseCounter:
        known = self.counters.get(registration.plan.name)
        if known is None or registration.round > known.round:
            registration.plan.check()
            if known is None and len(self.counters) >= MAX_DATA_SETS:
                raise errors.InputError(
                    f"{registration.plan.name!r} would be one more than {MAX_DATA_SETS} "
                    "data sets; give "
                    "those that are read in turn one name"
                )
            known = LeaseCounter(
                registration.plan, registration.round, registration.world_size, registration.shared
            )
            self.counters[registration.plan.name] = known
        if registration.round < known.round:
            raise errors.Conflict(f"round {registration.round} is over; {known.round} runs")
        _reject_mismatch(known, registration)
        return known

    def _open_ledger(self, counter: LeaseCounter, now: float) -> None:
        """Make the ledger from what all states together have seen."""
        told = counter.ranks.values()
        generation = max(1, *(rank.generation for rank in told))
        if counter.ledger is not None:
            generation = max(generation, counter.ledger.generation)
        # A first rank that knows less has gone back to a checkpoint: what others have done since
        # then is undone, and what they hold may be lent to others.
        if counter.shared and counter.ranks[0].generation < generation:
            generation += 1
        states = [counter.ranks[0]] if counter.shared else told
        seen = ConsumedSet.from_progress(rank.progress for rank in states).progress()
        terms = self._shared if counter.shared else self._terms
        before = counter.ledger.workers.keys() if counter.ledger is not None else None
        counter.ledger = LeaseLedger(counter.plan, seen, generation=generation, terms=terms)
        counter.last_replies.clear()
        for rank in told:
            gone = rank.rank and before is not None and rank.worker not in before
            if rank.generation in (0, generation) and not gone:
                counter.ledger.adopt(rank.worker, rank.held, now)

    # -- handing out ------------------------------------------------------------------------------

    def handle_request(self, request: LeaseRequest, now: float) -> LeaseReply:
        """Answer a worker.

        Raises:
            Conflict: its round is over.
            ProtocolError: it speaks of a partition that there is not.
        """
        counter = self.counters.get(request.name)
        if counter is None or request.round > counter.round:
            return LeaseReply(REGISTER, request.number)
        if request.round < counter.round:
            raise errors.Conflict(f"round {request.round} is over; {counter.round} runs")
        rank = request.worker.partition("/")[0]
        number = int(rank) if rank.isdecimal() and len(rank) <= _DIGITS else -1
        known = counter.ranks.get(number)
        if known is None or known.worker != request.worker:
            return LeaseReply(REGISTER, request.number)
        ledger = counter.ledger
        if ledger is None:
            return LeaseReply(WAIT, request.number)
        if request.generation not in (0, ledger.generation):
            return LeaseReply(REGISTER, request.number, ledger.generation)
        ledger.mark_alive(request.worker, now)
        last = counter.last_replies.get(request.worker)
        if last is not None and request.number == last.number:
            return last
        if last is not None and request.number < last.number:
            raise errors.Conflict(f"{request.worker} has asked {last.number} meanwhile")
        if last is not None and request.last_answer != last.answer:
            ledger.return_spans(request.worker, last.leases)
        served = _serve(ledger, request, now)
        reply = dataclasses.replace(served, answer=self._new_answer_id(), epoch=ledger.epoch)
        counter.last_replies[request.worker] = reply
        return reply

    def progress(self, name: str, round_: int) -> DataProgress:
        """What a shared ledger's checkpoint shall keep, as of now.

        Raises:
            Conflict: there is no ledger of that round yet, or any more.
        """
        counter = self.counters.get(name)
        if counter is None or counter.round != round_ or counter.ledger is None:
            raise errors.Conflict(
                f"there is no ledger of {name!r} in round {round_} now; ask again"
            )
        return counter.ledger.progress()

    def tick(self, now: float) -> None:
        """Hand on what has expired."""
        for counter in self.counters.values():
            if counter.ledger is not None:
                counter.ledger.tick(now)


def _serve(ledger: LeaseLedger, request: LeaseRequest, now: float) -> LeaseReply:
    worker, generation = request.worker, ledger.generation
    ledger.grow(request.ends)
    refused = 0
    if request.epoch == ledger.epoch:
        refused = sum(r.span.size for r in ledger.report(worker, generation, request.done))
        for unread in request.unreadable:
            ledger.report_unreadable(worker, generation, unread.span, now, unread.reason)
        for spoilt in request.unusable:
            ledger.report_unusable(spoilt.span, spoilt.reason)
    last = ledger.epoch + 1 >= ledger.plan.epochs
    if ledger.finished and not last and request.epoch == ledger.epoch + 1:
        ledger.next_epoch()
    over = request.epoch < ledger.epoch or (request.epoch == ledger.epoch and ledger.finished)
    poison = ledger.progress().poison if request.epoch == ledger.epoch else {}
    if over:
        return LeaseReply(
            FINISHED, request.number, generation, poison=poison, rejected_slots=refused
        )
    leases: tuple[SlotSpan, ...] = ()
    if request.epoch == ledger.epoch:
        wanted = min(request.max_spans, MAX_SPANS_PER_REQUEST)
        if wanted > 0:
            leases = ledger.lease(worker, generation, now, wanted, batch_slots=request.batch_slots)
    state = GO if leases or not request.max_spans else WAIT
    most = ledger.max_held(worker, request.batch_slots)
    return LeaseReply(
        state, request.number, generation, leases, poison, rejected_slots=refused, max_held=most
    )


def _reject_mismatch(counter: LeaseCounter, registration: RegisterData) -> None:
    """Ranks that mean different data by one name must not train together."""
    first = counter.ranks.get(min(counter.ranks, default=0))
    for name, known, given in (
        ("plan", _without_stream_ends(counter.plan), _without_stream_ends(registration.plan)),
        ("world size", counter.world_size, registration.world_size),
        ("shared", counter.shared, registration.shared),
    ):
        if known != given and not (name == "world size" and registration.shared):
            other = f"rank {first.rank}" if first else "another rank"
            raise errors.InputError(
                f"rank {registration.rank} has {name} {given} of "
                f"{registration.plan.name!r}, {other} has {known}; "
                "all ranks must read the same data, with the same settings"
            )


def _without_stream_ends(plan: DataPlan) -> DataPlan:
    """Without what may differ: streams are seen to end where each rank looked last."""
    fixed = (
        p if p.bounded else Partition(p.name, 0, 0, p.bounded, p.stage) for p in plan.partitions
    )
    return dataclasses.replace(plan, partitions=tuple(fixed))
