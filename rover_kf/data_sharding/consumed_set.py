# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What all ranks together have used, kept by each of them; pure.

Before a step's batches count, ranks tell each other which slots they are of. So every rank's part
of a checkpoint knows all, and no pod takes with it what is used. The union is the judge as well:
slots that are in it already, or that a lower rank brings at once, count for nothing, whatever the
ledger has lent to whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rover_kf.api.data import Progress, Span
from rover_kf.data_sharding.interval_set import Ranges


class Union:
    """Of one data set.

    Args:
        progress: that it begins with.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        known = progress or Progress()
        self.epoch = known.epoch
        self._done = {name: Ranges.from_text(text) for name, text in known.done.items()}
        self._poison = {name: Ranges.from_text(text) for name, text in known.poison.items()}

    @classmethod
    def of(cls, told: Iterable[Progress]) -> Union:
        """What is used by what several have seen; who is an epoch behind adds nothing."""
        found = cls()
        for progress in told:
            other = cls(progress)
            if other.epoch > found.epoch:
                found = other
            elif other.epoch == found.epoch:
                found.aside(progress.poison)
                found.know(progress.done)
        return found

    def agree(self, brought: Sequence[Sequence[Span]]) -> list[bool]:
        """Count what ranks bring to a step.

        Args:
            brought: spans of each rank's batch, by rank; the same on all of them.

        Returns:
            Of each rank whether its batch counts: unless a slot of it was used before.
        """
        return [self._count(spans) for spans in brought]

    def _count(self, spans: Sequence[Span]) -> bool:
        if any(self._of(span.partition).within(span.begin, span.end) for span in spans):
            return False
        for span in spans:
            self._of(span.partition).add(span.begin, span.end)
        return True

    def lacks(self, spans: Iterable[Span]) -> list[Span]:
        """Slots that are not used yet."""
        return [
            Span(span.partition, begin, end)
            for span in spans
            for begin, end in self._of(span.partition).gaps(span.begin, span.end)
        ]

    def know(self, done: Mapping[str, str]) -> None:
        """Slots were used."""
        for name, text in done.items():
            for begin, end in Ranges.from_text(text):
                self._of(name).add(begin, end)

    def aside(self, poison: Mapping[str, str]) -> None:
        """Slots were set aside."""
        for name, text in poison.items():
            for begin, end in Ranges.from_text(text):
                self._poison.setdefault(name, Ranges()).add(begin, end)

    @property
    def used(self) -> int:
        """Slots of the epoch."""
        return sum(ranges.total for ranges in self._done.values())

    def turn(self) -> None:
        """The next epoch begins."""
        self.epoch += 1
        self._done, self._poison = {}, {}

    def progress(self) -> Progress:
        """For a checkpoint."""
        poison = {name: ranges.copy() for name, ranges in sorted(self._poison.items())}
        for name, ranges in poison.items():
            for begin, end in self._of(name):
                ranges.remove(begin, end)  # one rank could not read what another one used
        return Progress(
            self.epoch,
            {name: ranges.to_text() for name, ranges in sorted(self._done.items()) if ranges},
            {name: ranges.to_text() for name, ranges in poison.items() if ranges},
        )

    def _of(self, name: str) -> Ranges:
        return self._done.setdefault(name, Ranges())
