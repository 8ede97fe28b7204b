# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where ranks register their data sets and ask for slots; pure. The coordinator puts it on HTTP.

Nothing of it outlives the coordinator, nor has to: what is used is in the ranks' states. A new
coordinator knows no worker and answers ``register``; when all ranks of the round have told what
they have used and what they hold, it goes on as the one before. A round begins in the same way.
"""

from __future__ import annotations

import dataclasses
import itertools

from rover_kf import errors
from rover_kf.api.data import MOST_AT_ONCE, DataPlan, Partition, Progress, Span
from rover_kf.api.leases import (
    FINISHED,
    GO,
    REGISTER,
    WAIT,
    LeaseReply,
    LeaseRequest,
    RegisterData,
    Registered,
)
from rover_kf.data_sharding.consumed_set import Union
from rover_kf.data_sharding.lease_terms import Terms
from rover_kf.data_sharding.ledger import Ledger

MOST_DATA_SETS = 64
"""Of a job; more are refused, since each costs memory."""
_DIGITS = 9
"""Of a rank, at most."""
SHARED_LEASE_SECONDS = 30.0
"""Lease of a shared ledger: workers report often (rover_kf.trainer.data.lease_prefetcher)."""


@dataclasses.dataclass(slots=True)
class Counter:
    """One data set in one round."""

    plan: DataPlan
    round: int
    world_size: int
    shared: bool
    ranks: dict[int, RegisterData] = dataclasses.field(default_factory=dict)
    ledger: Ledger | None = None
    """None: not all ranks have registered."""
    answered: dict[str, LeaseReply] = dataclasses.field(default_factory=dict)
    """Of each worker the last one."""
    tickets: dict[int, str] = dataclasses.field(default_factory=dict)
    """By rank, since its last process came: with which another one takes its place."""


class Desk:
    """One a coordinator.

    Args:
        terms: on which slots of ledgers that are not shared are lent.
        shared: on which those of shared ones are.
        name: that no other coordinator's desk has.
    """

    def __init__(
        self, terms: Terms | None = None, shared: Terms | None = None, name: str = ""
    ) -> None:
        self._name, self._answers = name, itertools.count(1)
        self._terms = terms or Terms()
        self._shared = shared or Terms(SHARED_LEASE_SECONDS, by_speed=True)
        self.counters: dict[str, Counter] = {}

    # -- registering ------------------------------------------------------------------------------

    def register(self, told: RegisterData, now: float) -> Registered:
        """A rank says what it has; the ledger begins when all ranks of the round have.

        Returns:
            With a ticket, if another process of the rank is known and nothing has happened yet.

        Raises:
            Conflict: its round is over.
            InputError: its plan is none, or another one than other ranks have.
        """
        counter = self._counter(told)
        before = counter.ranks.get(told.rank)
        if before is not None and before.worker != told.worker:
            ticket = counter.tickets.setdefault(told.rank, self._answer())
            if told.ticket != ticket:
                return Registered(ticket)
            del counter.tickets[told.rank]
        counter.ranks[told.rank] = told
        if before is not None and before.worker == told.worker and counter.ledger is not None:
            return Registered()  # the same again: its answer was lost
        if before is not None and counter.ledger is not None:
            counter.ledger.gone(before.worker)
            counter.answered.pop(before.worker, None)
        all_here = counter.ledger is None and len(counter.ranks) == told.world_size
        if (told.rank == 0) if told.shared else all_here:
            self._open(counter, now)
        elif counter.ledger is not None and told.generation == counter.ledger.generation:
            counter.ledger.adopt(told.worker, told.held, now)
        return Registered()

    def _answer(self) -> str:
        """A name that no other answer of any coordinator has."""
        return f"{self._name}{next(self._answers)}"

    def _counter(self, told: RegisterData) -> Counter:
        known = self.counters.get(told.plan.name)
        if known is None or told.round > known.round:
            told.plan.check()
            if known is None and len(self.counters) >= MOST_DATA_SETS:
                raise errors.InputError(
                    f"{told.plan.name!r} would be one more than {MOST_DATA_SETS} data sets; give "
                    "those that are read in turn one name"
                )
            known = Counter(told.plan, told.round, told.world_size, told.shared)
            self.counters[told.plan.name] = known
        if told.round < known.round:
            raise errors.Conflict(f"round {told.round} is over; {known.round} runs")
        _compare(known, told)
        return known

    def _open(self, counter: Counter, now: float) -> None:
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
        seen = Union.of(rank.progress for rank in states).progress()
        terms = self._shared if counter.shared else self._terms
        before = counter.ledger.workers.keys() if counter.ledger is not None else None
        counter.ledger = Ledger(counter.plan, seen, generation=generation, terms=terms)
        counter.answered.clear()
        for rank in told:
            gone = rank.rank and before is not None and rank.worker not in before
            if rank.generation in (0, generation) and not gone:
                counter.ledger.adopt(rank.worker, rank.held, now)

    # -- handing out ------------------------------------------------------------------------------

    def ask(self, request: LeaseRequest, now: float) -> LeaseReply:
        """Answer a worker.

        Raises:
            Conflict: its round is over.
            MessageError: it speaks of a partition that there is not.
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
        ledger.heard(request.worker, now)
        last = counter.answered.get(request.worker)
        if last is not None and request.number == last.number:
            return last
        if last is not None and request.number < last.number:
            raise errors.Conflict(f"{request.worker} has asked {last.number} meanwhile")
        if last is not None and request.taken != last.answer:
            ledger.give_back(request.worker, last.leases)
        served = _served(ledger, request, now)
        reply = dataclasses.replace(served, answer=self._answer(), epoch=ledger.epoch)
        counter.answered[request.worker] = reply
        return reply

    def progress(self, name: str, round_: int) -> Progress:
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


def _served(ledger: Ledger, request: LeaseRequest, now: float) -> LeaseReply:
    worker, generation = request.worker, ledger.generation
    ledger.grow(request.ends)
    refused = 0
    if request.epoch == ledger.epoch:
        refused = sum(r.span.size for r in ledger.report(worker, generation, request.done))
        for unread in request.unread:
            ledger.fail(worker, generation, unread.span, now, unread.reason)
        for spoilt in request.spoilt:
            ledger.spoil(spoilt.span, spoilt.reason)
    last = ledger.epoch + 1 >= ledger.plan.epochs
    if ledger.finished and not last and request.epoch == ledger.epoch + 1:
        ledger.turn()
    over = request.epoch < ledger.epoch or (request.epoch == ledger.epoch and ledger.finished)
    poison = ledger.progress().poison if request.epoch == ledger.epoch else {}
    if over:
        return LeaseReply(FINISHED, request.number, generation, poison=poison, refused=refused)
    leases: tuple[Span, ...] = ()
    if request.epoch == ledger.epoch:
        wanted = min(request.wanted, MOST_AT_ONCE)
        if wanted > 0:
            leases = ledger.lease(worker, generation, now, wanted, least=request.least)
    state = GO if leases or not request.wanted else WAIT
    most = ledger.portion(worker, request.least)
    return LeaseReply(state, request.number, generation, leases, poison, refused=refused, most=most)


def _compare(counter: Counter, told: RegisterData) -> None:
    """Ranks that mean different data by one name must not train together."""
    first = counter.ranks.get(min(counter.ranks, default=0))
    for name, known, given in (
        ("plan", _fixed(counter.plan), _fixed(told.plan)),
        ("world size", counter.world_size, told.world_size),
        ("shared", counter.shared, told.shared),
    ):
        if known != given and not (name == "world size" and told.shared):
            other = f"rank {first.rank}" if first else "another rank"
            raise errors.InputError(
                f"rank {told.rank} has {name} {given} of {told.plan.name!r}, {other} has {known}; "
                "all ranks must read the same data, with the same settings"
            )


def _fixed(plan: DataPlan) -> DataPlan:
    """Without what may differ: streams are seen to end where each rank looked last."""
    fixed = (
        p if p.bounded else Partition(p.name, 0, 0, p.bounded, p.stage) for p in plan.partitions
    )
    return dataclasses.replace(plan, partitions=tuple(fixed))
