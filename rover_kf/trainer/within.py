# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a state has of one kind, wherever its dicts, lists and tuples have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def within(value: object, kind: type[T]) -> Iterator[T]:
    """Those of a kind, in order.

    Args:
        value: a state, or a part of one.
        kind: a class; what is inside one of its objects is not looked at.
    """
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from within(item, kind)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from within(item, kind)
