# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is read, which part of it is handed out, and what of it is used: between trainer and ledger.

A *slot* is a place in a partition's order. Which sample stands in it is fixed (by seed and epoch, a
file's row, a topic's offset); who reads it is decided while training runs.
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
