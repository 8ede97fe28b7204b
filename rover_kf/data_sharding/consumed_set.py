# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The slots that all ranks together have used, kept by each of them.

Before a step's batches count, ranks exchange their slots. So every rank's checkpoint has all, and a
lost pod takes nothing with it. Slots that are in the set, or that a lower rank brings at once, do
not count, whatever the ledger has leased.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api.data import DataProgress, SlotSpan
from rover_kf.data_sharding.interval_set import IntervalSet


class ConsumedSet:
    """The consumed slots of one data set."""

    def __init__(self, progress: DataProgress | None = None) -> None:
        known = progress or DataProgress()
        self.epoch = known.epoch
        self._done = {name: IntervalSet.from_text(text) for name, text in known.done.items()}
        self._poison = {name: IntervalSet.from_text(text) for name, text in known.poison.items()}

    @classmethod
    def from_progress(cls, states: Iterable[DataProgress]) -> ConsumedSet:
        """What is used by what several have seen; who is an epoch behind adds nothing."""
        found = cls()
        for progress in states:
            other = cls(progress)
            if other.epoch > found.epoch:
                found = other
            elif other.epoch == found.epoch:
                found.add_poison(progress.poison)
                found.add_consumed(progress.done)
        return found

    def accept_batches(self, batches: Sequence[Sequence[SlotSpan]]) -> list[bool]:
        """Return whether each rank's batch counts: none of its slots was used before."""
        return [self._accept(spans) for spans in batches]

    def _accept(self, spans: Sequence[SlotSpan]) -> bool:
        if any(self._consumed(span.partition).intersect(span.begin, span.end) for span in spans):
            return False
        for span in spans:
            self._consumed(span.partition).add(span.begin, span.end)
        return True

    def missing(self, spans: Iterable[SlotSpan]) -> list[SlotSpan]:
        """Slots that are not used yet."""
        return [
            SlotSpan(span.partition, begin, end)
            for span in spans
            for begin, end in self._consumed(span.partition).gaps(span.begin, span.end)
        ]

    def add_consumed(self, done: Mapping[str, str]) -> None:
        """Slots were used."""
        for name, text in done.items():
            for begin, end in IntervalSet.from_text(text):
                self._consumed(name).add(begin, end)

    def add_poison(self, poison: Mapping[str, str]) -> None:
        """Slots were set aside."""
        for name, text in poison.items():
            for begin, end in IntervalSet.from_text(text):
                self._poison.setdefault(name, IntervalSet()).add(begin, end)

    @property
    def used(self) -> int:
        """Slots of the epoch."""
        return sum(ranges.total for ranges in self._done.values())

    def next_epoch(self) -> None:
        """The next epoch begins."""
        self.epoch += 1
        self._done, self._poison = {}, {}

    def progress(self) -> DataProgress:
        """For a checkpoint."""
        poison = {name: ranges.copy() for name, ranges in sorted(self._poison.items())}
        for name, ranges in poison.items():
            for begin, end in self._consumed(name):
                ranges.remove(begin, end)  # one rank could not read what another one used
        return DataProgress(
            self.epoch,
            {name: ranges.to_text() for name, ranges in sorted(self._done.items()) if ranges},
            {name: ranges.to_text() for name, ranges in poison.items() if ranges},
        )

    def _consumed(self, name: str) -> IntervalSet:
        return self._done.setdefault(name, IntervalSet())
