# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Plain data to and from JSON that keeps its types; in place of pickle.

The trainer encodes the part of a state that is no tensor; it travels in a snapshot's metadata.
A restored value has exactly the type that was saved (tuple, int key, bytes, nan): whatever has no
exact form is refused by its path, since a near miss would be found only after a crash.
Subclasses are refused too (a named tuple would come back as a tuple), but for Counter, which
MultiStepLR of torch keeps, and for OrderedDict and defaultdict, which state dicts are made of and
which come back as dict where the script has none for them to fill. Scalars of numpy's, which a
learning rate becomes in a schedule that calls numpy, come back as numbers of Python's.

Scalars that JSON keeps stand for themselves; all else is a one-key object:
``l`` list, ``t`` tuple, ``d`` dict as pairs, ``n`` Counter as pairs, ``b`` bytes in base64, ``f``
float that JSON lacks, ``c`` complex as two floats in hexadecimal, ``T`` a tensor by its name in the
file.
"""

from __future__ import annotations

import base64
import collections
import json
import math
from collections.abc import Callable
from typing import Any

from rover_kf import errors

Leaf = Callable[[str, object], Any]
"""Encodes what is not plain data, given its path; raises UnsupportedState if it cannot."""

Resolve = Callable[[str], object]
"""Gives the tensor of a name."""

MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
"""What is stored as a dict."""
_JSON_SCALARS = frozenset((type(None), bool, int, str, float))
"""What JSON gives for what stands for itself."""
_NUMPY = frozenset((
    "bool", "bool_", "int8", "int16", "int32", "int64", "intc", "longlong",
    "uint8", "uint16", "uint32", "uint64", "uintc", "ulonglong",
    "float16", "float32", "float64", "complex64", "complex128",
))  # fmt: skip
"""Scalars that a number of Python's can hold."""


def reject(path: str, value: object) -> Any:
    """The leaf that knows nothing but plain data.

    Raises:
        UnsupportedState: always.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    message = (
        f"state{path} is a {kind}, which cannot be stored without pickle; store a tensor, plain "
        "data (numbers, strings, bytes, None, lists, tuples, dicts) or an object with state_dict"
    )
    if kind.startswith("numpy."):
        message += "; torch.from_numpy makes a tensor of an array, float() a number of a scalar"
    elif isinstance(value, tuple):
        message += "; tuple() makes a plain one of a torch.Size or a named tuple"
    raise errors.UnsupportedState(message)


def to_python_scalar(value: object) -> object:
    """A scalar of numpy's as the number of Python's of its exact value; any other value itself."""
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in _NUMPY:
        return value.item()  # type: ignore[attr-defined] # numpy's; it is not imported for this
    return value


def encode(value: object, leaf: Leaf = reject, path: str = "") -> Any:
    """Turn plain data into JSON data.

    Args:
        value: what to encode.
        leaf: called for every value that is not plain.
        path: where the value stands, as it is shown in errors: ``['model']['bias']``.

    Raises:
        UnsupportedState: a value cannot be stored, or the data contains itself.
    """
    try:
        return _encode(value, leaf, path)
    except RecursionError as cause:
        message = f"state{path} is nested too deeply or contains itself; it cannot be stored"
        raise errors.UnsupportedState(message) from cause


def _encode(value: object, leaf: Leaf, path: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, complex) and kind is complex:
        return {"c": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes) and kind is bytes:
        return {"b": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list) and kind is list:
        return {"l": [_encode(item, leaf, f"{path}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, tuple) and kind is tuple:
        return {"t": [_encode(item, leaf, f"{path}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict) and (kind in MAPPINGS or kind is collections.Counter):
        pairs = [
            [_encode(key, reject, f"{path} key"), _encode(item, leaf, f"{path}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"n" if kind is collections.Counter else "d": pairs}
    plain = to_python_scalar(value)
    return leaf(path, value) if plain is value else _encode(plain, leaf, path)


def parse(text: str) -> Any:
    """JSON data from the text that stands in a snapshot's metadata.

    Raises:
        CorruptSnapshot: it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise errors.CorruptSnapshot(f"a snapshot's state cannot be read: {cause}") from cause


def decode(data: Any, resolve: Resolve) -> Any:
    """Build the value from JSON data.

    Args:
        data: what encode gave.
        resolve: gives the tensor of a name.

    Raises:
        CorruptSnapshot: the data was not made by encode.
    """
    if type(data) in _JSON_SCALARS:
        return data
    try:
        ((tag, content),) = data.items()
        return _decode(tag, content, resolve)
    except (AttributeError, TypeError, ValueError, ArithmeticError, LookupError) as cause:
        message = f"a snapshot's plain data cannot be read: {cause}"
        raise errors.CorruptSnapshot(message) from cause
    except RecursionError as cause:
        raise errors.CorruptSnapshot("a snapshot's plain data is nested too deeply") from cause


def _decode(tag: str, content: Any, resolve: Resolve) -> Any:
    if tag == "T":  # most often: thousands in a state
        return resolve(content)
    if tag == "l":
        return [decode(item, resolve) for item in content]
    if tag == "t":
        return tuple(decode(item, resolve) for item in content)
    if tag in ("d", "n"):
        found = {
            key if type(key) is str else decode(key, resolve): decode(item, resolve)
            for key, item in content
        }
        return found if tag == "d" else collections.Counter(found)
    if tag == "b":
        return base64.b64decode(content, validate=True)
    if tag == "f":
        return float(content)
    if tag == "c":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    raise ValueError(tag)
