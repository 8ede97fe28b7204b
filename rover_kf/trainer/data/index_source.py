# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots that are indices: of a map-style data set, or of what a function reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from rover_kf import errors
from rover_kf.api.data import Partition, SlotSpan
from rover_kf.data_sharding.permutation import Permutation


class IndexSource:
    """A map-style data set as a source; its samples are the same in every process.

    An empty ``fingerprint`` stands for the data set's own.

    Raises:
        InputError: the data set has no length.
    """

    def __init__(
        self, dataset: Any, *, seed: int = 0, shuffle: bool = True, fingerprint: str = ""
    ) -> None:
        if not isinstance(dataset, Sized):
            raise errors.InputError(
                f"{type(dataset).__name__} has no length; leases need a data set that has one, or "
                "a Source (rover_kf.data_sharding.ledger_source)"
            )
        self._dataset: Any = dataset
        self._seed, self._shuffle = seed, shuffle
        self.fingerprint = fingerprint or str(getattr(dataset, "fingerprint", ""))
        self.order = f"shuffled by seed {seed}" if shuffle else "as it is"

    def partitions(self) -> tuple[Partition, ...]:
        """See Source."""
        return (Partition("", 0, len(self._dataset)),)

    def ends(self) -> Mapping[str, int]:
        """See Source."""
        return {}

    def read(self, span: SlotSpan, epoch: int) -> Iterable[Any]:
        """See Source."""
        places: Iterable[int] = range(span.begin, span.end)
        if self._shuffle:
            order = Permutation(len(self._dataset), self._seed, epoch)
            places = [order.value_at(place) for place in places]
        together = getattr(self._dataset, "__getitems__", None)
        if together is not None:
            found: Iterable[Any] = together(list(places))
            return found
        return [self._dataset[place] for place in places]


class RangeSource:
    """A function that reads a range of samples, in their own order, as a source.

    ``read`` returns as many samples as its range has numbers.

    Raises:
        InputError: fewer samples than none.
    """

    def __init__(
        self, read: Callable[[range], Iterable[Any]], samples: int, *, fingerprint: str = ""
    ) -> None:
        if samples < 0:
            raise errors.InputError(f"{samples} samples: there cannot be fewer than none")
        self._read, self._samples = read, samples
        self.fingerprint, self.order = fingerprint, "as it is"

    def partitions(self) -> tuple[Partition, ...]:
        """See Source."""
        return (Partition("", 0, self._samples),)

    def ends(self) -> Mapping[str, int]:
        """See Source."""
        return {}

    def read(self, span: SlotSpan, epoch: int) -> Iterable[Any]:  # noqa: ARG002 - the same in all
        """See Source."""
        return self._read(range(span.begin, span.end))
