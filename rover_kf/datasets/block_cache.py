# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The blocks that were read last: an order by blocks comes back to each a few batches later."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Generic, TypeVar

from rover_kf import errors

Block = TypeVar("Block")


class BlockCache(Generic[Block]):
    """Of one process; a copy for another process (pickled or forked) begins empty.

    Args:
        read: a block by its number.
        capacity: blocks that are kept.

    Raises:
        InputError: none would be kept.
    """

    def __init__(self, read: Callable[[int], Block], capacity: int) -> None:
        if capacity < 1:
            raise errors.InputError(f"cached is {capacity}; 1 block or more is needed")
        self._read, self._capacity = read, capacity
        self._blocks: collections.OrderedDict[int, Block] = collections.OrderedDict()

    def get(self, number: int) -> Block:
        """The block, read if it is not held."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = self._blocks[number] = self._read(number)
        if len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return block
