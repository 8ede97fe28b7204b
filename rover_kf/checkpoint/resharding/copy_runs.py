# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of bytes that go from a snapshot into another one: a box of a tensor inside larger boxes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from rover_kf.checkpoint.format.tensor_layout import Box


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """Equal runs of bytes of one source, at equal distances there and here."""

    begin: int
    """Of the first run in the source."""
    step: int
    """From run to run in the source."""
    target: int
    """Where the first run goes."""
    target_step: int
    run: int
    """Bytes of a run."""
    count: int

    @classmethod
    def whole(cls, length: int) -> Copy:
        """A source as it is."""
        return cls(begin=0, step=length, target=0, target_step=length, run=length, count=1)

    @property
    def end(self) -> int:
        """Of the last run in the source."""
        return self.begin + (self.count - 1) * self.step + self.run


@dataclasses.dataclass(frozen=True, slots=True)
class Lying:
    """A box of a tensor in a file, row by row."""

    begin: int
    """Byte of the file."""
    box: Box


def runs(common: Box, there: Lying, here: Lying, width: int) -> Iterator[Copy]:
    """What brings a box from inside one to inside another.

    Args:
        common: lies in both.
        there: the source.
        here: the target.
        width: bytes an element.
    """
    run, axis = width, len(common.sizes)
    while axis:
        axis -= 1
        run *= common.sizes[axis]
        if not common.sizes[axis] == there.box.sizes[axis] == here.box.sizes[axis]:
            break
    steps, target_steps = _steps(there.box, width), _steps(here.box, width)
    count = common.sizes[axis - 1] if axis else 1
    for index in itertools.product(*(range(size) for size in common.sizes[: max(axis - 1, 0)])):
        at = [begin + i for begin, i in itertools.zip_longest(common.offsets, index, fillvalue=0)]
        yield Copy(
            begin=there.begin + _offset(at, there.box, steps),
            step=steps[axis - 1] if axis else run,
            target=here.begin + _offset(at, here.box, target_steps),
            target_step=target_steps[axis - 1] if axis else run,
            run=run,
            count=count,
        )


def _steps(box: Box, width: int) -> tuple[int, ...]:
    """Bytes from one index to the next, of each axis."""
    return tuple(width * math.prod(box.sizes[axis + 1 :]) for axis in range(len(box.sizes)))


def _offset(at: Sequence[int], box: Box, steps: Sequence[int]) -> int:
    return sum(
        (place - begin) * step for place, begin, step in zip(at, box.offsets, steps, strict=True)
    )


def scatter(block: memoryview, at: int, copies: Sequence[Copy], target: memoryview) -> None:
    """Move what a block of a source holds of the copies to where it goes.

    Args:
        block: bytes of the source.
        at: where the block begins in the source.
        copies: of that source.
        target: the new snapshot.
    """
    end = at + len(block)
    for copy in copies:
        if copy.begin >= end or copy.end <= at:
            continue
        first = max(0, (at - copy.begin - copy.run) // copy.step + 1) if copy.count > 1 else 0
        for number in range(first, copy.count):
            begin = copy.begin + number * copy.step
            if begin >= end:
                break
            low, high = max(begin, at), min(begin + copy.run, end)
            if low < high:
                place = copy.target + number * copy.target_step + low - begin
                target[place : place + high - low] = block[low - at : high - at]
