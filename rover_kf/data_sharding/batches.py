# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An epoch cut into global batches, and each batch into every rank's parts.

Batches follow the epoch's order and do not depend on the number of ranks, which cut them evenly.
"""

from __future__ import annotations

import dataclasses
import itertools

from rover_kf import errors


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPart:
    """What one rank computes at once, in positions of the batch."""

    begin: int
    end: int
    weight: float
    """Of the mean loss over it, so that gradients averaged over ranks are the mean of the batch."""
    last: bool
    """Whether what the rank has of the step ends with it."""

    @property
    def samples(self) -> int:
        """That are computed, those that only stand in included."""
        return self.end - self.begin


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """The rest of an epoch, as one rank sees it.

    Raises:
        InputError: numbers that make no batches; the message says which.
    """

    samples: int
    """In the epoch."""
    done: int
    """Of them; batches begin there."""
    batch: int
    """Samples a step, over all ranks."""
    rank: int
    world_size: int
    max_samples: int
    """Samples that a rank computes at once; what it takes of a step is cut into parts of it."""
    drop_last: bool = False
    """Leave out the samples that do not fill a batch."""

    def __post_init__(self) -> None:
        """Refuse what cannot be cut."""
        if self.samples < 1:
            raise errors.InputError("the data set is empty: there is nothing to train on")
        if self.batch < 1 or self.max_samples < 1:
            raise errors.InputError(
                f"a batch of {self.batch} samples, {self.max_samples} at once: both must "
                "be 1 or more"
            )
        if not 0 <= self.rank < self.world_size:
            raise errors.InputError(f"rank {self.rank} of {self.world_size} processes")
        if self.batch < self.world_size:
            raise errors.InputError(
                f"a batch of {self.batch} samples for {self.world_size} processes: some would have "
                "none; batch_size counts the samples of all processes together, raise it, or set "
                "the job's maxReplicas lower"
            )
        if self.drop_last and self.samples < self.batch:
            raise errors.InputError(
                f"{self.samples} samples do not fill a batch of {self.batch}, and drop_last leaves "
                "such a batch out: nothing would be trained on"
            )

    @property
    def full(self) -> int:
        """Batches that are left and have all their samples."""
        return max(self.samples - self.done, 0) // self.batch

    @property
    def steps(self) -> int:
        """Batches that are left."""
        left = max(self.samples - self.done, 0)
        return self.full if self.drop_last else -(-left // self.batch)

    def begin_of(self, step: int) -> int:
        """Samples of the epoch that are used before a step."""
        return self.done + step * self.batch

    def end_of(self, step: int) -> int:
        """Samples of the epoch that are used after a step."""
        return min(self.begin_of(step + 1), self.samples)

    def parts_of(self, size: int) -> tuple[BatchPart, ...]:
        """Return the parts of a batch of so many samples that the rank computes, in order.

        All ranks compute as many parts, since collectives come with each of them. Where the samples
        do not suffice (the end of an epoch), the batch's first sample stands in with weight 0.
        """
        marks = self._marks(size)
        return tuple(
            BatchPart(
                at if at < end else 0,
                end if at < end else 1,
                (end - at) * self.world_size / size,
                last=number == len(marks) - 1,
            )
            for number, (at, end) in enumerate(itertools.pairwise(marks), start=1)
        )

    def _marks(self, size: int) -> list[int]:
        count = -(-size // (self.world_size * self.max_samples))
        parts, first = count * self.world_size, count * self.rank
        return [size * part // parts for part in range(first, first + count + 1)]
