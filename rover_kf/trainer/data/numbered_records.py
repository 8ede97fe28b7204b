# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records that are told by their numbers: of a table, in an order by seed and epoch."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataPlan, Partition, SlotSpan
from rover_kf.data_sharding.permutation import Permutation

_SHARD = 1024
"""Records of a lease, about."""


@dataclasses.dataclass(frozen=True, slots=True)
class NumberedRecords:
    """The records of one data set by their numbers."""

    plan: DataPlan
    batch: int
    seed: int | None
    """None: in their own order."""

    @classmethod
    def create(
        cls,
        samples: int,
        *,
        batch: int,
        epochs: int,
        name: str,
        seed: int,
        shuffle: bool,
        fingerprint: str,
    ) -> NumberedRecords:
        """Plan the leases of so many records.

        Raises:
            InputError: there is nothing to train on, or a number is out of range.
        """
        if batch < 1:
            raise errors.InputError(f"batches of {batch} records; 1 or more is needed")
        order = f"shuffled by seed {seed}" if shuffle else "as it is"
        shard = batch * max(1, _SHARD // batch)
        plan = DataPlan(name, (Partition("", 0, samples),), shard, epochs, fingerprint, order)
        plan.check()
        return cls(plan, batch, seed if shuffle else None)

    @property
    def batches(self) -> int:
        """Of an epoch, where none is cut."""
        return -(-self.plan.partitions[0].end // self.batch)

    def record_numbers(self, span: SlotSpan, epoch: int) -> Any:
        """Return the records' numbers at these slots, an int64 array."""
        numpy: Any = importlib.import_module("numpy")
        found = numpy.arange(span.begin, span.end, dtype=numpy.int64)
        if self.seed is not None:
            order = Permutation(self.plan.partitions[0].end, self.seed, epoch)
            found = order.apply_network(found)
            while (outside := found >= order.size).any():
                found[outside] = order.apply_network(found[outside])
        return found
