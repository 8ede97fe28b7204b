# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of tensors by how their names begin: an optimizer's state lies as its parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Begins(Generic[T]):
    """Found by a look for each length of a begin, not for each begin.

    A mixture of experts has tens of thousands of parameters, and several tensors of each.
    """

    known: Mapping[str, T]
    """By the begin of names."""
    lengths: tuple[int, ...]
    """Of all begins, the shortest first."""

    def of(self, name: str) -> Iterator[T]:
        """Of each begin that the name has, the shortest first."""
        for length in self.lengths:
            if length > len(name):
                return
            found = self.known.get(name[:length])
            if found is not None:
                yield found


def by_begin(known: Mapping[str, T]) -> Begins[T]:
    """For names that begin so."""
    return Begins(known, tuple(sorted({len(begin) for begin in known})))
