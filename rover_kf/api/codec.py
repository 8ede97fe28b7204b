# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""JSON to and from the frozen dataclasses of this package, without pickle.

Readers ignore unknown fields, which a newer writer may add. A missing or ill-typed field raises
ProtocolError with its path. So do numbers beyond 64 bits, infinite ones and nesting without end,
which would break the next writer. Text that UTF-8 lacks (half a surrogate pair) is written out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from rover_kf import errors

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Plain data to a value of one type."""

_PLAIN = frozenset((type(None), str, int, float, bool))

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""Whole numbers of a message: what files, sockets and databases can take."""


def encode(value: object) -> Any:
    """Turn a dataclass (or tuple, dict, scalar of such) into plain JSON data."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if names := _names(kind):
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(kind):
        return {}
    message = f"a value of type {kind.__name__} has no place in a message"
    raise errors.ProtocolError(message)


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    """Of a dataclass' fields; none of any other type."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def dumps(value: object) -> bytes:
    """Encode as compact UTF-8 JSON.

    Raises:
        ProtocolError: a value has no place in a message.
    """
    plain = encode(value)
    try:
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as cause:
        message = f"a {type(value).__name__} cannot be sent: {cause}"
        raise errors.ProtocolError(message) from cause


def loads(cls: type[T], data: bytes | str) -> T:
    """Decode JSON bytes as ``cls``.

    Raises:
        ProtocolError: not JSON, or not that message.
    """
    try:
        return decode(cls, json.loads(data, parse_constant=_refuse_constant))
    except ValueError as cause:
        message = f"not JSON where a {cls.__name__} was expected: {cause}"
        raise errors.ProtocolError(message) from cause
    except RecursionError as cause:
        message = f"JSON where a {cls.__name__} was expected is nested too deeply"
        raise errors.ProtocolError(message) from cause


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


def decode(cls: type[T], data: object) -> T:
    """Build ``cls`` (a dataclass) from plain JSON data.

    Raises:
        ProtocolError: a field is missing or of the wrong type; the message has its path.
    """
    try:
        found: T = _reader(typing.cast("Any", cls))(data)
    except _DecodeError as misfit:
        raise errors.ProtocolError(f"{cls.__name__}{misfit.path}: {misfit.reason}") from None
    return found


class _DecodeError(Exception):
    """Data is not what a type wants; containers that it leaves say where it lay."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def prefix_path(self, prefix: str) -> None:
        """It lay at that place of what held it."""
        self.path = prefix + self.path


@functools.cache
def _reader(kind: Any) -> Reader:
    """Builds that type from plain data; made once, since a message has hundreds of fields."""
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return lambda data: data
    if dataclasses.is_dataclass(kind):
        return functools.partial(_read_dataclass, kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(typing.get_args(kind))
    if origin is tuple:
        return functools.partial(_read_items, _reader(typing.get_args(kind)[0]))
    if origin is dict:
        return functools.partial(_read_dict, _reader(typing.get_args(kind)[1]))
    return _SCALARS.get(kind) or functools.partial(_read_exactly, kind)


def _read_float(data: Any) -> float:
    if type(data) is float:
        if not math.isfinite(data):
            raise _DecodeError(f"{data} is not finite")
        return data
    if type(data) is int:
        return float(_bounded(data))
    raise _unexpected(float, data)


def _read_int(data: Any) -> int:
    if type(data) is int:
        return _bounded(data)
    raise _unexpected(int, data)


def _bounded(number: int) -> int:
    if MIN_INTEGER <= number <= MAX_INTEGER:
        return number
    raise _DecodeError("a number of more than 64 bits")


def _read_text(data: Any) -> str:
    if type(data) is not str:
        raise _unexpected(str, data)
    return data if data.isascii() else data.encode("utf-8", "backslashreplace").decode()


def _read_exactly(kind: Any, data: Any) -> Any:
    if type(data) is kind:
        return data
    raise _unexpected(kind, data)


def _read_dataclass(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _DecodeError(f"expected an object, got {type(data).__name__}")
    found: dict[str, Any] = {}
    name = ""
    try:
        for name, read, needed in _fields(kind):
            if name in data:
                found[name] = read(data[name])
            elif needed:
                _refuse("missing")
    except _DecodeError as misfit:
        misfit.prefix_path(f".{name}")
        raise
    try:
        return kind(**found)
    except errors.InputError as refusal:  # a type that holds no value out of range
        raise _DecodeError(str(refusal)) from None


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Reader, bool], ...]:
    """Each field's name and reader, and whether a message must have it."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            field.name,
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def _optional(kinds: tuple[Any, ...]) -> Reader:
    remaining = [kind for kind in kinds if kind is not type(None)]
    if len(remaining) != 1:
        return lambda _: _refuse("a message field may be optional, not a union of types")
    read = _reader(remaining[0])
    return lambda data: None if data is None else read(data)


def _refuse(reason: str) -> NoReturn:
    raise _DecodeError(reason)


def _read_items(read: Reader, data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _DecodeError(f"expected a list, got {type(data).__name__}")
    found: list[Any] = []
    try:
        for item in data:
            found.append(read(item))  # noqa: PERF401 - its length is the place of a misfit
    except _DecodeError as misfit:
        misfit.prefix_path(f"[{len(found)}]")
        raise
    return tuple(found)


def _read_dict(read: Reader, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _DecodeError(f"expected an object, got {type(data).__name__}")
    found: dict[str, Any] = {}
    key = ""
    try:
        for key, item in data.items():
            found[_read_text(key)] = read(item)
    except _DecodeError as misfit:
        misfit.prefix_path(f".{key}")
        raise
    return found


def _unexpected(kind: Any, data: object) -> _DecodeError:
    return _DecodeError(f"expected {getattr(kind, '__name__', kind)}, got {type(data).__name__}")


_SCALARS: Mapping[Any, Reader] = {float: _read_float, int: _read_int, str: _read_text}
