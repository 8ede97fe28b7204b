# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A set of numbers as the ranges that it consists of: what it takes depends on its gaps alone."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator

from rover_kf import errors

Interval = tuple[int, int]
"""From the first number to the one after the last."""
_DIGITS = 20
"""Of a number of slots, at most."""


class IntervalSet:
    """A sorted set of separate ranges; all operations find their place by bisection."""

    def __init__(self, ranges: Iterable[Interval] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """Numbers in it."""
        for begin, end in ranges:
            self.add(begin, end)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self._begins, self._ends, strict=True)

    def __len__(self) -> int:
        """Ranges, not numbers."""
        return len(self._begins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        return f"Ranges({self.to_text()!r})"

    def copy(self) -> IntervalSet:
        """Another one of the same numbers."""
        made = IntervalSet()
        made._begins, made._ends = self._begins[:], self._ends[:]
        made.total = self.total
        return made

    def add(self, begin: int, end: int) -> int:
        """Put numbers in; says how many are new."""
        if begin >= end:
            return 0
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        before = self.total
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
            self.total -= sum(self._ends[first:last]) - sum(self._begins[first:last])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
        self.total += end - begin
        return self.total - before

    def remove(self, begin: int, end: int) -> int:
        """Take numbers out; says how many were there."""
        if begin >= end:
            return 0
        first = bisect.bisect_right(self._ends, begin)
        last = bisect.bisect_left(self._begins, end)
        if first >= last:
            return 0
        before = self.total
        rest = [
            piece
            for piece in ((self._begins[first], begin), (end, self._ends[last - 1]))
            if piece[0] < piece[1]
        ]
        self.total -= sum(self._ends[first:last]) - sum(self._begins[first:last])
        self._begins[first:last] = [piece[0] for piece in rest]
        self._ends[first:last] = [piece[1] for piece in rest]
        self.total += sum(piece[1] - piece[0] for piece in rest)
        return before - self.total

    def intersect(self, begin: int, end: int) -> list[Interval]:
        """What it has of a range."""
        first = bisect.bisect_right(self._ends, begin)
        last = bisect.bisect_left(self._begins, end)
        pairs = zip(self._begins[first:last], self._ends[first:last], strict=True)
        return [(max(a, begin), min(b, end)) for a, b in pairs if a < b]

    def gaps(self, begin: int, end: int) -> list[Interval]:
        """What it lacks of a range."""
        inside = self.intersect(begin, end)
        marks = [begin, *itertools.chain.from_iterable(inside), end]
        pairs = zip(marks[::2], marks[1::2], strict=True)
        return [(a, b) for a, b in pairs if a < b]

    def first(self) -> Interval | None:
        """The lowest range."""
        return (self._begins[0], self._ends[0]) if self._begins else None

    def clear(self) -> None:
        """Take all out."""
        self._begins, self._ends, self.total = [], [], 0

    def to_text(self) -> str:
        """``skipped+length`` of each range, counted from the end of the one before."""
        before = [0, *self._ends[:-1]]
        return ",".join(
            [
                f"{begin - last}+{end - begin}"
                for last, begin, end in zip(before, self._begins, self._ends, strict=False)
            ]
        )

    @classmethod
    def from_text(cls, text: str) -> IntervalSet:
        """The ranges of such a text.

        Raises:
            ProtocolError: it is none.
        """
        made, at = cls(), 0
        for pair in text.split(",") if text else ():
            skipped, plus, length = pair.partition("+")
            if not (plus and _is_count(skipped) and _is_count(length) and int(length)):
                raise errors.ProtocolError(
                    f"{pair!r} is no range of a progress; expected 'skip+len'"
                )
            begin = at + int(skipped)
            at = begin + int(length)
            made.add(begin, at)
        return made


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS
