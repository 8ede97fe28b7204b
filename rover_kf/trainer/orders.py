# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The sample that stands at each place of an epoch, for many places at a time."""

from __future__ import annotations

from typing import Protocol

import torch

from rover_kf.sharding.permutation import Permutation


class Order(Protocol):
    """Of one epoch."""

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """The samples' numbers.

        Args:
            places: in the epoch, int64.
        """


class Unshuffled:
    """The data set's own order."""

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """The samples' numbers."""
        return places


class Shuffled:
    """Any sample may follow any other.

    Args:
        size: samples of the epoch.
        seed: of the job.
        epoch: number of the epoch.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._order = Permutation(size, seed, epoch)

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """The samples' numbers."""
        return shuffled(self._order, places)


def shuffled(order: Permutation, places: torch.Tensor) -> torch.Tensor:
    """``order.at`` of every place."""
    found = order.once(places)
    while bool((outside := found >= order.size).any()):
        found[outside] = order.once(found[outside])
    return found
