# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many steps a training takes at a global batch, by how far measured trainings got.

A step at batch B advances as many steps of the smallest batch b as the gradient's noise lets it:
(var + sqr) / (var b / B + sqr).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Epoch:
    """The end of an epoch of a measured training."""

    progress: float
    """Steps of the smallest batch that it was worth, since the beginning."""
    grad_sqr: float
    grad_var: float


class TrainingWork:
    """The trainings of one model, at several global batches.

    Args:
        epochs: of each training, by its global batch.
    """

    def __init__(self, epochs: Mapping[int, tuple[Epoch, ...]]) -> None:
        self._epochs = dict(sorted(epochs.items()))
        self._batches = tuple(self._epochs)
        self._count = min(len(rows) for rows in self._epochs.values())

    @property
    def smallest(self) -> int:
        """Smallest global batch that was measured."""
        return self._batches[0]

    @property
    def largest(self) -> int:
        """Largest global batch that was measured."""
        return self._batches[-1]

    def steps(self, global_batch: float) -> float:
        """Steps from the beginning to the end at that batch."""
        done, total = 0.0, 0.0
        for epoch in range(self._count):
            until = min(rows[epoch].progress for rows in self._epochs.values())
            total += max(0.0, until - done) / self._gain(global_batch, epoch)
            done = max(done, until)
        return total

    def _gain(self, global_batch: float, epoch: int) -> float:
        batch = min(max(global_batch, self.smallest), self.largest)
        high = bisect.bisect_left(self._batches, batch)
        upper = self._batches[high]
        lower = self._batches[max(high - 1, 0)] if upper > batch else upper
        part = (batch - lower) / (upper - lower) if upper > lower else 0.0
        one, two = self._epochs[lower][epoch], self._epochs[upper][epoch]
        sqr = one.grad_sqr + part * (two.grad_sqr - one.grad_sqr)
        var = one.grad_var + part * (two.grad_var - one.grad_var)
        scale = batch / self.smallest
        return (var + sqr) / (var / scale + sqr)
