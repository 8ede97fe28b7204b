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
class CopyRun:
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
    def whole(cls, length: int) -> CopyRun:
        """A source as it is."""
        return cls(begin=0, step=length, target=0, target_step=length, run=length, count=1)

    @property
    def end(self) -> int:
        """Of the last run in the source."""
        return self.begin + (self.count - 1) * self.step + self.run


@dataclasses.dataclass(frozen=True, slots=True)
class Strided:
    """A box of a tensor in a file, row by row."""

    begin: int
    """Byte of the file."""
    box: Box


def plan_runs(common: Box, source: Strided, target: Strided, width: int) -> Iterator[CopyRun]:
    """What brings a box from inside one to inside another.

    Args:
        common: lies in both.
        source: the source.
        target: the target.
        width: bytes an element.
    """
    run, axis = width, len(common.sizes)
    while axis:
        axis -= 1
        run *= common.sizes[axis]
        if not common.sizes[axis] == source.box.sizes[axis] == target.box.sizes[axis]:
            break
    steps, target_steps = _strides(source.box, width), _strides(target.box, width)
    count = common.sizes[axis - 1] if axis else 1
    for index in itertools.product(*(range(size) for size in common.sizes[: max(axis - 1, 0)])):
        at = [begin + i for begin, i in itertools.zip_longest(common.offsets, index, fillvalue=0)]
        yield CopyRun(
            begin=source.begin + _offset(at, source.box, steps),
            step=steps[axis - 1] if axis else run,
            target=target.begin + _offset(at, target.box, target_steps),
            target_step=target_steps[axis - 1] if axis else run,
            run=run,
            count=count,
        )


def _strides(box: Box, width: int) -> tuple[int, ...]:
    """Bytes from one index to the next, of each axis."""
    return tuple(width * math.prod(box.sizes[axis + 1 :]) for axis in range(len(box.sizes)))


def _offset(position: Sequence[int], box: Box, steps: Sequence[int]) -> int:
    return sum(
        (place - begin) * step
        for place, begin, step in zip(position, box.offsets, steps, strict=True)
    )


def scatter(block: memoryview, offset: int, copies: Sequence[CopyRun], target: memoryview) -> None:
    """Move what a block of a source holds of the copies to where it goes.

    Args:
        block: bytes of the source.
        offset: where the block begins in the source.
        copies: of that source.
        target: the new snapshot.
    """
    end = offset + len(block)
    for copy in copies:
        if copy.begin >= end or copy.end <= offset:
            continue
        first = max(0, (offset - copy.begin - copy.run) // copy.step + 1) if copy.count > 1 else 0
        for number in range(first, copy.count):
            begin = copy.begin + number * copy.step
            if begin >= end:
                break
            low, high = max(begin, offset), min(begin + copy.run, end)
            if low < high:
                place = copy.target + number * copy.target_step + low - begin
                target[place : place + high - low] = block[low - offset : high - offset]
