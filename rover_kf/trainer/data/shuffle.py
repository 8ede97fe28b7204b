# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Orders of samples; one of them reads blocks (row groups, parts of a text) nearly in order.

The shuffled blocks form a line; neighbours whose samples are shuffled together form a window. The
line is cut into lanes of equal length, and an epoch takes some samples of each lane in turn. So a
part of every batch reads a few windows from begin to end, whoever takes it. Two searches find any
position.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import torch

from rover_kf import errors
from rover_kf.data_sharding.permutation import Permutation


class Unshuffled:
    """The data set's own order."""

    def samples_at(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the samples' numbers at positions of the epoch (int64)."""
        return positions


class Shuffled:
    """A random order in which any sample may follow any other."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._order = Permutation(size, seed, epoch)

    def samples_at(self, positions: torch.Tensor) -> torch.Tensor:
        """See Unshuffled."""
        return self._order.values_at(positions)


_MIN_WINDOW = 4096
"""Samples of a window, at least, where the line has as many: its blocks are few or large."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockInterleave:
    """A way over the line of blocks, in lanes.

    Raises:
        InputError: a number below 1.
    """

    count: int
    run_length: int
    """Samples that are taken of a lane before it is the next one's turn."""

    def __post_init__(self) -> None:
        """Refuse what is none."""
        if self.count < 1 or self.run_length < 1:
            raise errors.InputError(
                f"{self.count} lanes of which {self.run_length} samples are taken in turn: "
                "both must be "
                "1 or more"
            )

    def line_positions(self, positions: torch.Tensor, samples: int) -> torch.Tensor:
        """Return the positions in the line of positions in the epoch."""
        count = min(self.count, samples)
        each, more = divmod(samples, count)
        whole = each // self.run_length * self.run_length
        # Three stretches: whole turns, one shorter turn, a last sample of the first few lanes.
        turn = torch.where(positions < whole * count, self.run_length, max(each - whole, 1))
        turn = torch.where(positions < each * count, turn, 1)
        begin = torch.where(positions < whole * count, 0, whole)
        begin = torch.where(positions < each * count, begin, each)
        within = positions - begin * count
        rounds, rest = within // (turn * count), within % (turn * count)
        lane = rest // turn
        return lane * each + lane.clamp(max=more) + begin + rounds * turn + rest % turn


class BlockShuffled:
    """A random order of one epoch that keeps the samples of a block close.

    ``sizes`` are the samples of each block in the data set's order. ``interleave`` is the same on
    all ranks and in all lives of the job.
    """

    def __init__(
        self, sizes: Sequence[int], interleave: BlockInterleave, seed: int, epoch: int
    ) -> None:
        self._key, self._interleave = (seed, epoch), interleave
        own = torch.tensor(sizes)
        line = _permute_in_chunks(Permutation(len(own), *self._key, -1))
        self._ends = own[line].cumsum(0)
        self._sample_offsets = (own.cumsum(0) - own)[line] - (self._ends - own[line])
        """What to add to a place in the line, by block, for the sample's number."""
        groups = (self._ends - 1) // _MIN_WINDOW
        last = torch.cat([groups[1:] != groups[:-1], torch.ones(1, dtype=torch.bool)])
        self._windows = self._ends[last]

    def samples_at(self, positions: torch.Tensor) -> torch.Tensor:
        """See Unshuffled."""
        found = self._interleave.line_positions(positions, int(self._ends[-1]))
        windows = torch.searchsorted(self._windows, found, right=True)
        for window in windows.unique().tolist():  # type: ignore[no-untyped-call] # torch's own
            inside = windows == window
            begin = int(self._windows[window - 1]) if window else 0
            size = int(self._windows[window]) - begin
            order = Permutation(size, *self._key, window)
            found[inside] = order.values_at(found[inside] - begin) + begin
        return found + self._sample_offsets[torch.searchsorted(self._ends, found, right=True)]


SampleOrder: TypeAlias = Unshuffled | Shuffled | BlockShuffled


def _permute_in_chunks(order: Permutation) -> torch.Tensor:
    """All of it; by parts that stay in the processor's cache."""
    parts = torch.arange(order.size).split(_MIN_WINDOW)  # type: ignore[no-untyped-call] # torch's own
    return torch.cat([order.values_at(part) for part in parts])


def digest(sizes: Sequence[int]) -> str:
    """Stands for the blocks: an order of others is another order."""
    whole = hashlib.blake2b(digest_size=8)
    for size in sizes:
        whole.update(size.to_bytes(8, "little"))
    return whole.hexdigest()
