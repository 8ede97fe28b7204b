# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between trainers and a ledger: what is read, leased and used.

A *slot* is a place in a partition's order. Seed and epoch, a file or a topic fix its sample; its
reader is decided while training runs.
"""

from __future__ import annotations

import dataclasses

from rover_kf import errors

MAX_SPANS_PER_REQUEST = 16
"""Leases that one request may ask for."""
PROGRESS_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """Slots begin … end - 1 of one thing that is read: a data set, a file, a topic's partition."""

    name: str
    begin: int = 0
    end: int = 0
    bounded: bool = True
    """False: the end grows (a stream), and the job never has all of it."""
    stage: int = 0
    """Partitions of a stage are handed out when those of lower ones are done: history, then what
    comes in. One with a bounded partition behind an unbounded one would never be reached."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotSpan:
    """Some slots of a partition: what a lease is for, and what reports speak of."""

    partition: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Slots."""
        return self.end - self.begin


@dataclasses.dataclass(frozen=True, slots=True)
class DataPlan:
    """All that a ledger needs to know; the same on all ranks, but for the ends of streams."""

    name: str
    """Tells a job's data sets apart."""
    partitions: tuple[Partition, ...]
    shard: int
    """Slots of a lease, at most: shards begin at multiples of it."""
    epochs: int = 1
    fingerprint: str = ""
    """Of the contents; any text."""
    order: str = ""
    """Which sample stands in which slot, in words: ranks must not differ in it."""

    def check(self) -> None:
        """Refuse what there is nothing to train on of.

        Raises:
            InputError: the message says what is wrong and what to do.
        """
        label = f"the data set {self.name!r}"
        if self.shard < 1 or self.epochs < 1:
            raise errors.InputError(
                f"{label} has shards of {self.shard} and {self.epochs} epochs; both must be 1 or "
                "more"
            )
        names = [partition.name for partition in self.partitions]
        if len(set(names)) != len(names):
            raise errors.InputError(f"{label} has two partitions of one name: {sorted(names)}")
        for partition in self.partitions:
            if partition.begin < 0 or partition.end < partition.begin:
                raise errors.InputError(
                    f"{label}: partition {partition.name!r} goes from {partition.begin} to "
                    f"{partition.end}; it must not end before it begins, nor begin below 0"
                )
        streams = [p.stage for p in self.partitions if not p.bounded]
        if not streams and all(p.begin == p.end for p in self.partitions):
            raise errors.InputError(f"{label} is empty: there is nothing to train on")
        behind = [p.name for p in self.partitions if streams and p.stage > min(streams)]
        if behind or (streams and self.epochs > 1):
            raise errors.InputError(
                f"{label} has a stream, which never ends, and {behind or 'more epochs'} after it; "
                "put streams into the last stage, with one epoch"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class DataProgress:
    """Used slots by partition, as compact ranges (rover_kf.data_sharding.interval_set)."""

    epoch: int = 0
    """From 0 on; equal to the plan's epochs: all is done."""
    done: dict[str, str] = dataclasses.field(default_factory=dict)
    poison: dict[str, str] = dataclasses.field(default_factory=dict)
    """Slots that could not be read however often it was tried, and that count as reported."""
    version: int = PROGRESS_VERSION


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
    """Of another known process of the rank: a living process registers again with it."""


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
    """Name of the newest answer that arrived: leases of a later one are lent again."""
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
    """Until the last known epoch ends, at that rate; None: a stream, or nothing is done."""
    poison: tuple[PoisonedShard, ...] = ()
    """The newest, at most 8."""
    workers: tuple[WorkerShare, ...] = ()
    """Those that have done most, at most 64."""
