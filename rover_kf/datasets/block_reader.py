# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A map-style data set whose samples lie in blocks, each read as a whole and kept for a while."""

from __future__ import annotations

import abc
import array
import bisect
import itertools
import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rover_kf.datasets.block_cache import BlockCache

Block = TypeVar("Block")


class BlockReader(abc.ABC, Generic[Block]):
    """What text and tables have in common. Workers of a DataLoader may have it, forked or spawned.

    Args:
        sizes: samples of each block, in order.
        cached: blocks that a process keeps.

    Raises:
        InputError: it would keep none.
    """

    def __init__(self, sizes: Sequence[int], cached: int) -> None:
        self._sizes, self._cached = array.array("Q", sizes), cached
        self._ends = array.array("Q", itertools.accumulate(sizes))
        self._reset()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def blocks(self) -> Sequence[int]:
        """Samples of each block."""
        return self._sizes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": None, "_process": 0}

    def _reset(self) -> None:
        """Nothing is held yet; files that are open are this process's own."""
        self._recent = BlockCache(self._read, self._cached)
        self._process = os.getpid()

    def _cached_block(self, number: int) -> Block:
        if self._process != os.getpid():
            self._reset()
        return self._recent.get(number)

    def _locate(self, number: int) -> tuple[int, int]:
        """The block that has a sample, and where in it.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= number < len(self):
            message = f"sample {number} of {len(self)}"
            raise IndexError(message)
        block = bisect.bisect_right(self._ends, number)
        return block, number - (self._ends[block] - self._sizes[block])

    @abc.abstractmethod
    def _read(self, block: int) -> Block:
        """Read a block.

        Raises:
            DatasetReadError: it cannot be; the message says where it lies.
        """
