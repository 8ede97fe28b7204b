# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a state has of one kind, wherever its dicts, lists and tuples have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
"""Of what there may be millions, as of a sampler's indices: no look at each."""


def iter_instances(value: object, kind: type[T]) -> Iterator[T]:
    """Yield a state's objects of a class in order; nothing is searched inside of them."""
    if isinstance(value, kind):
        yield value
        return
    items = [*value.values()] if isinstance(value, Mapping) else value
    if isinstance(items, (list, tuple)) and not _PLAIN.issuperset(map(type, items)):
        for item in items:
            yield from iter_instances(item, kind)
