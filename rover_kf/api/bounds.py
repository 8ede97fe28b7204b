# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds on a message of a party that the reader does not trust.

The codec checks types. What else a reader relies on is checked here, once for all fields: lists
end, texts are short, sums of numbers stay exact, and times are ones that a calendar has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rover_kf import errors

MAX_ITEMS = 10_000
MAX_TEXT = 16_384
"""Characters; the longest text is the stack of a rank."""
MAX_NUMBER = 1e15
"""Bytes, steps and seconds stay below it; a float holds each whole number of them."""
MAX_TIME = 4.1e9
"""Unix seconds of the year 2099."""
_TIMES = frozenset({"at", "now", "since", "seen_until", "account_from", "window_closes"})


def check_bounds(message: object, listed: Mapping[str, int]) -> None:
    """Reject a message that a reader could not afford.

    Args:
        message: a decoded dataclass.
        listed: items that a field's list has at most, by the field's name; others have MAX_ITEMS.

    Raises:
        ProtocolError: a value is out of bounds; the message has its path.
    """
    _check(message, type(message).__name__, "", listed)


def _check(value: object, path: str, name: str, listed: Mapping[str, int]) -> None:
    if isinstance(value, (int, float)):
        most = MAX_TIME if name in _TIMES or name.endswith("_at") else MAX_NUMBER
        if not abs(value) <= most:
            raise errors.ProtocolError(f"{path} is {value!r:.40}; allowed: up to {most:g}")
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise errors.ProtocolError(f"{path} has {len(value)} characters; allowed: {MAX_TEXT}")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _check(getattr(value, field.name), f"{path}.{field.name}", field.name, listed)
    elif value is not None:
        most = listed.get(name, MAX_ITEMS)
        items = _items(value)
        if len(items) > most:
            raise errors.ProtocolError(f"{path} has {len(items)} items; allowed: {most}")
        for item in items:
            _check(item, f"{path}[]", "", listed)


def _items(value: object) -> Sequence[object]:
    """What a collection holds; of a mapping keys and values."""
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    assert isinstance(value, (tuple, list))  # noqa: S101 - the codec decodes nothing else
    return value
