# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of data: what a new kind of input has to implement.

A source names its partitions and reads spans of them, in the training process and in workers of a
DataLoader. Leases, failures and checkpoints are the same for all sources.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from rover_kf.api.data import DataProgress, Partition, SlotSpan


class SlotMarker(enum.Enum):
    """What ``read`` may give in a sample's place."""

    EMPTY = "empty"
    """An empty slot, as a compacted offset; it counts as used with the sample before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnusableRecord:
    """What ``read`` may give for a record of which nothing can be made: told by its place.

    Its slot counts as used, like an empty one.
    """

    reason: str


@runtime_checkable
class LedgerSource(Protocol):
    """Slots and how to read them."""

    @property
    def fingerprint(self) -> str:
        """Of the contents; a checkpoint of another one is refused. Empty: not known."""

    @property
    def order(self) -> str:
        """Which sample stands in which slot, in words (``seed 3``); the same on all ranks."""

    def partitions(self) -> tuple[Partition, ...]:
        """All there are, as of now; asked once, in the training process.

        Raises:
            InputError: there is no such data; the message says what to do.
        """

    def ends(self) -> Mapping[str, int]:
        """Where unbounded partitions end now; bounded sources give nothing.

        Asked again and again, by a thread that training does not wait for.
        """

    def read(self, span: SlotSpan, epoch: int) -> Iterable[Any]:
        """The content of each slot of a span: a sample or a ``SlotMarker``, in their order.

        Called where data are read: in a DataLoader's workers if it has any. The same slots give the
        same samples whenever and wherever they are read again. An exception is told to the ledger:
        the span is read again later, perhaps by another rank, and set aside after some failures.

        The span is within one shard; epochs count from 0.
        """


@runtime_checkable
class ResumableSource(Protocol):
    """A source that begins where the state has left off: a stream, which may have lost slots."""

    def resume(self, progress: DataProgress) -> DataProgress:
        """Take what the restored state has used; called on every rank before ``partitions``.

        Returns:
            The same with what nobody has to read: slots before the start, and those that are gone.

        Raises:
            RoverError: slots that were not used are gone, and that is an error.
        """
