# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""JSON to and from the frozen dataclasses of this package; no pickle, no reflection beyond fields.

A field that the reader does not know is ignored (a newer writer may add one); a field that is
missing and has no default, or has another type, raises MessageError with its path. So does what no
writer of ours makes and what would break the next one: numbers beyond 64 bits, numbers that are not
finite, nesting without end. Text that UTF-8 lacks (half a surrogate pair) is taken written out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, NoReturn, TypeVar

from rover_kf import errors

T = TypeVar("T")

LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**64 - 1
"""Whole numbers of a message: what files, sockets and databases can take."""


def encode(value: object) -> Any:
    """Turn a dataclass (or tuple, dict, scalar of such) into plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    message = f"a value of type {type(value).__name__} has no place in a message"
    raise errors.MessageError(message)


def dumps(value: object) -> bytes:
    """Encode as compact UTF-8 JSON.

    Raises:
        MessageError: a value has no place in a message.
    """
    plain = encode(value)
    try:
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as cause:
        message = f"a {type(value).__name__} cannot be sent: {cause}"
        raise errors.MessageError(message) from cause


def loads(cls: type[T], data: bytes | str) -> T:
    """Decode JSON bytes as ``cls``.

    Raises:
        MessageError: not JSON, or not that message.
    """
    try:
        return decode(cls, json.loads(data, parse_constant=_refuse_constant))
    except ValueError as cause:
        message = f"not JSON where a {cls.__name__} was expected: {cause}"
        raise errors.MessageError(message) from cause
    except RecursionError as cause:
        message = f"JSON where a {cls.__name__} was expected is nested too deeply"
        raise errors.MessageError(message) from cause


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


def decode(cls: type[T], data: object) -> T:
    """Build ``cls`` (a dataclass) from plain JSON data.

    Raises:
        MessageError: a field is missing or of the wrong type; the message has its path.
    """
    return typing.cast("T", _read(cls, data, cls.__name__))


def _read(kind: Any, data: object, path: str) -> object:
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return data
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, path)
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(kind), data, path)
    if origin is tuple:
        return tuple(_read_items(typing.get_args(kind)[0], data, path))
    if origin is dict:
        return _read_dict(typing.get_args(kind)[1], data, path)
    return _read_scalar(kind, data, path)


def _read_scalar(kind: Any, data: object, path: str) -> object:
    found = type(data)
    if kind is str and found is str:
        return _text(typing.cast("str", data))
    if found is int and kind in (int, float):
        number = typing.cast("int", data)
        if not LEAST_INTEGER <= number <= MOST_INTEGER:
            raise errors.MessageError(f"{path}: a number of more than 64 bits")
        return kind(number)
    if found is float and kind is float and not math.isfinite(typing.cast("float", data)):
        raise errors.MessageError(f"{path}: {data} is not finite")
    if found is kind:
        return data
    message = f"{path}: expected {getattr(kind, '__name__', kind)}, got {found.__name__}"
    raise errors.MessageError(message)


def _text(data: str) -> str:
    if data.isascii():
        return data
    return data.encode("utf-8", "backslashreplace").decode()


def _read_dataclass(kind: Any, data: object, path: str) -> object:
    if not isinstance(data, dict):
        message = f"{path}: expected an object, got {type(data).__name__}"
        raise errors.MessageError(message)
    found: dict[str, object] = {}
    for name, (hint, needed) in _fields(kind).items():
        if name in data:
            found[name] = _read(hint, data[name], f"{path}.{name}")
        elif needed:
            message = f"{path}.{name}: missing"
            raise errors.MessageError(message)
    return kind(**found)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Each field's type, and whether a message must have it."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    }


def _read_union(kinds: tuple[Any, ...], data: object, path: str) -> object:
    if data is None and type(None) in kinds:
        return None
    remaining = [kind for kind in kinds if kind is not type(None)]
    if len(remaining) != 1:
        message = f"{path}: a message field may be optional, not a union of types"
        raise errors.MessageError(message)
    return _read(remaining[0], data, path)


def _read_items(kind: Any, data: object, path: str) -> list[object]:
    if not isinstance(data, list):
        message = f"{path}: expected a list, got {type(data).__name__}"
        raise errors.MessageError(message)
    return [_read(kind, item, f"{path}[{index}]") for index, item in enumerate(data)]


def _read_dict(kind: Any, data: object, path: str) -> dict[str, object]:
    if not isinstance(data, dict):
        message = f"{path}: expected an object, got {type(data).__name__}"
        raise errors.MessageError(message)
    return {_text(key): _read(kind, item, f"{path}.{key}") for key, item in data.items()}
