# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of tensors by how their names begin: an optimizer's state lies as its parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixIndex(Generic[T]):
    """Found by a look for each length of a begin, not for each begin.

    A mixture of experts has tens of thousands of parameters, and several tensors of each.
    """

    entries: Mapping[str, T]
    """By the begin of names."""
    lengths: tuple[int, ...]
    """Of all begins, the shortest first."""

    def matches(self, name: str) -> Iterator[T]:
        """Of each begin that the name has, the shortest first."""
        for length in self.lengths:
            if length > len(name):
                return
            found = self.entries.get(name[:length])
            if found is not None:
                yield found


def index_by_prefix(entries: Mapping[str, T]) -> PrefixIndex[T]:
    """For names that begin so."""
    return PrefixIndex(entries, tuple(sorted({len(begin) for begin in entries})))
