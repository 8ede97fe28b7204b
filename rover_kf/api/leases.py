# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots lent by the coordinator: between training processes and the desk with the ledger."""

from __future__ import annotations

import dataclasses

from rover_kf.api.data import DataPlan, DataProgress, SlotSpan

GO, WAIT, FINISHED, REGISTER = "go", "wait", "finished", "register"


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterData:
    """A rank says what it has of a data set, at the begin of a round or to a new coordinator."""

    plan: DataPlan
    round: int
    rank: int
    world_size: int
    worker: str
    """``<rank>/<process>``: another process of the same rank has another name."""
    progress: DataProgress
    """What the state that the rank goes on with has seen."""
    held: tuple[SlotSpan, ...] = ()
    """What a coordinator that is gone has lent it."""
    shared: bool = False
    """The ledger is the coordinator's alone and rank 0's state has it: at least once."""
    generation: int = 0
    """Greatest of a ledger that the rank has heard of."""
    ticket: str = ""
    """Registration by which a process replaces another of its rank; from ``RegisterReply``."""


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterReply:
    """The coordinator knows the rank, or asks whether it is still alive."""

    ticket: str = ""
    """Not empty: another process of the rank is known. Register again with it: only who lives to
    hear this can, so that a late message of a dead process displaces nobody."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnreadableSpan:
    """A span that could not be read, and why."""

    span: SlotSpan
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a rank has used, and how much it wants; asked again unchanged if no answer comes."""

    name: str
    """Of the plan."""
    round: int
    worker: str
    generation: int
    """Of the ledger, as the last answer said; 0: there was none."""
    number: int
    """Counts a worker's requests; the same one again gets the same answer again."""
    epoch: int
    last_answer: str = ""
    """The newest answer of a ledger that has arrived: what another one has lent since never came,
    and is lent anew."""
    max_spans: int = 0
    """Spans at most, up to MAX_SPANS_PER_REQUEST."""
    batch_slots: int = 1
    """Slots that the worker uses at once: its batch."""
    done: tuple[SlotSpan, ...] = ()
    unreadable: tuple[UnreadableSpan, ...] = ()
    unusable: tuple[UnreadableSpan, ...] = ()
    """Records among those that are done of which nothing could be made."""
    ends: dict[str, int] = dataclasses.field(default_factory=dict)
    """Where streams end by now."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReply:
    """Spans to read, or why there are none."""

    state: str
    """``go``; ``wait``: all are with others, or not all ranks have registered; ``finished``: the
    epoch; ``register``: the coordinator does not know the worker (any more)."""
    number: int
    generation: int = 0
    leases: tuple[SlotSpan, ...] = ()
    poison: dict[str, str] = dataclasses.field(default_factory=dict)
    """Slots of the epoch that were set aside, as Progress has them."""
    answer: str = ""
    """Its own name; no other answer of any coordinator has it."""
    rejected_slots: int = 0
    """Slots of this request's reports that count for nothing."""
    max_held: int = 0
    """Slots that the worker shall hold at most by now, so that all end together; 0: any number."""
    epoch: int = -1
    """That the ledger is in; a shared one may have gone back to a checkpoint's. -1: not told."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgressRequest:
    """Rank 0 of a shared ledger asks what a checkpoint shall keep."""

    name: str
    round: int


@dataclasses.dataclass(frozen=True, slots=True)
class PoisonedShard:
    """A part of a shard that was set aside, or a record of which nothing could be made."""

    span: SlotSpan
    tries: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerShare:
    """What a worker has of an epoch's slots."""

    worker: str
    """``<rank>/<process>``, or the rank alone where slots are not leased."""
    used: int
    outstanding: int

    @property
    def rank(self) -> str:
        """Of the worker, whichever process it is."""
        return self.worker.partition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class DataStatus:
    """How far a data set is read; of a coordinator's status."""

    name: str
    epoch: int
    epochs: int
    """That are trained; 0: only the script knows."""
    slots: int
    """Of the epoch; of a stream those that there are by now."""
    done: int
    outstanding: int
    """Slots that are lent, or that workers read ahead."""
    poisoned: int
    """Slots that were set aside, and records that could not be used."""
    rate: float
    """Slots done a second, over the last minute."""
    eta_seconds: float | None = None
    """Until the last epoch ends, at that rate, or this one where only the script knows the last;
    None: a stream, or nothing is done."""
    poison: tuple[PoisonedShard, ...] = ()
    """The newest, at most 8."""
    workers: tuple[WorkerShare, ...] = ()
    """Those that have done most, at most 64."""
