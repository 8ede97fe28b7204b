# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""JSON of plain data with its scalars apart, since they are what changes between two saves."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rover_kf.checkpoint.format import plain_data

_JSON = json.JSONEncoder(separators=(",", ":"))


class EncodedNumber(NamedTuple):
    """A float or complex number as its JSON: equal where it comes back as the same number."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """The JSON of one section of a state, with its scalars apart."""

    between: tuple[str, ...]
    """What stands before, between and after the scalars."""
    scalars: tuple[str, ...]
    """JSON of each."""

    def text(self) -> str:
        """The whole."""
        return fill(self.between, self.scalars)

    def has_scalars(self, scalars: Sequence[object]) -> bool:
        """Whether these are its scalars, in this order."""
        return self.scalars == tuple(map(encode_scalar, scalars))

    def with_scalars(self, before: Sequence[object], now: Sequence[object]) -> Template:
        """Return the template with other scalars of the same types."""
        pairs = zip(self.scalars, before, now, strict=True)
        scalars = [text if new == old else encode_scalar(new) for text, old, new in pairs]
        return Template(self.between, tuple(scalars))


EMPTY = Template(("",), ())
"""Of nothing."""


def template_of(node: Any) -> Template:
    """Take JSON data of rover_kf.checkpoint.format.plain_data apart."""
    between, scalars, pieces = [], [], list[str]()
    for text, is_scalar in _pieces(node):
        if is_scalar:
            scalars.append(text)
            between.append("".join(pieces))
            pieces = []
        else:
            pieces.append(text)
    return Template((*between, "".join(pieces)), tuple(scalars))


def fill(between: Sequence[str], inner: Sequence[str]) -> str:
    """Texts with others between them."""
    pieces = [""] * (2 * len(inner) + 1)
    pieces[::2] = between
    pieces[1::2] = inner
    return "".join(pieces)


def encode_scalar(scalar: object) -> str:
    """JSON of one scalar."""
    if type(scalar) is int:
        return repr(scalar)  # as JSON has it, and an optimizer may count steps by the thousand
    return scalar.text if isinstance(scalar, EncodedNumber) else compact(plain_data.encode(scalar))


def encode_number(value: complex) -> EncodedNumber:
    """A float or complex number."""
    if isinstance(value, float) and math.isfinite(value):
        return EncodedNumber(repr(value))
    return EncodedNumber(compact(plain_data.encode(value)))


def compact(node: Any) -> str:
    """JSON without spaces, as it stands in a file."""
    return _JSON.encode(node)


def escape(text: str) -> str:
    """A text as it stands in a JSON text."""
    return compact(text)[1:-1]


def _pieces(node: Any) -> Iterator[tuple[str, bool]]:
    if not isinstance(node, dict):
        yield compact(node), True
        return
    ((tag, content),) = node.items()
    if tag == "T":
        yield compact(node), False
    elif tag in ("l", "t", "d", "n"):
        yield f'{{"{tag}":[', False
        for index, item in enumerate(content):
            comma = "," if index else ""
            if tag in ("d", "n"):
                key, value = item
                yield f"{comma}[{compact(key)},", False
                yield from _pieces(value)
                yield "]", False
            else:
                yield comma, False
                yield from _pieces(item)
        yield "]}", False
    else:
        yield compact(node), True
