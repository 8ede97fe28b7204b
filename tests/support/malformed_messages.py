# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes that somebody sends who means no good: what is no message at all, and nearly good ones.

A test that uses it asserts what a parser promises: a value of its kind or an error of ours, within
a bound of time and memory.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pkgutil
import types
import typing
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import rover_kf.api

BUDGET = settings(
    # Milliseconds an example, by a clock on the wall: what takes 0.6 s of a processor (the worst
    # input here) takes several times that beside other load.
    deadline=20_000,
    derandomize="CI" in os.environ or "ROVER_KF_FUZZ" not in os.environ,
    max_examples=int(os.environ.get("ROVER_KF_FUZZ", "60")),
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
"""The same examples in each run; `make fuzz` sets ROVER_KF_FUZZ to how many others it draws."""

NASTY = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**300, 10**400, 0.5, -0.0,
    1e308, float("inf"), float("-inf"), float("nan"), "", "0", "\x00", "\ud800", "../../x", "/etc",
    "é", "²", "\u202e", "9" * 5000, "a" * 5000, [], {}, [[]], [None], {"": None}, {"\udcff": 1},
)  # fmt: skip
"""Values that one mistake or another was once made with."""

# Floats of a short text: hypothesis' own need a `deadline` of their own in wide trees.
leaves = st.one_of(st.sampled_from(NASTY), st.integers(), st.floats(), st.text(max_size=8))
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
"""Any JSON value."""


def as_bytes(value: object) -> bytes:
    """JSON as a careless program writes it: NaN and Infinity, too."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


DEEP = b"[" * 20_000
DEEP_OBJECT = b'{"a":' * 20_000
rubbish = st.one_of(
    st.binary(max_size=200),
    anything.map(as_bytes),
    st.sampled_from([b"", b"\xff\xfe", b"\x00" * 64, DEEP, DEEP_OBJECT, b"1" * 5000, b'"\xff"']),
)
"""Bytes that are no message, or by chance one."""


def messages() -> dict[str, type]:
    """Every dataclass of rover_kf.api by its name: all that crosses a process border."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(rover_kf.api.__path__, "rover_kf.api."):
        home = importlib.import_module(module.name)
        for name, kind in vars(home).items():
            is_message = isinstance(kind, type) and dataclasses.is_dataclass(kind)
            if is_message and kind.__module__ == home.__name__:
                found[name] = kind
    return found


def plain(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """JSON data that a message of the kind may be decoded from."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {f.name: plain(hints[f.name], depth + 1) for f in dataclasses.fields(kind)}
        return st.fixed_dictionaries(fields)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [one for one in typing.get_args(kind) if one is not type(None)]
        return st.none() | plain(inner, depth)
    most = 2 if depth < 3 else 0
    if origin is tuple:
        return st.lists(plain(typing.get_args(kind)[0], depth + 1), max_size=most)
    if origin is dict or kind is Mapping:
        inner = typing.get_args(kind)[1]
        return st.dictionaries(st.text(max_size=6), plain(inner, depth + 1), max_size=most)
    simple = {
        int: st.integers(-2, 40) | st.integers(-(2**63), 2**63 - 1),
        float: st.floats(-10, 1e10) | st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=6) | st.sampled_from(["", "0", "train-worker-0", "a/b", "1+2"]),
        bool: st.booleans(),
    }
    return simple.get(kind, leaves)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[Any]) -> Any:
    """Plain data of which one or two parts are something else, are missing, or are too many."""
    value = draw(whole)
    for _ in range(draw(st.integers(0, 2))):
        value = _damage(draw, value)
    return value


def _damage(draw: st.DrawFn, value: Any) -> Any:
    inside = isinstance(value, (dict, list)) and value and draw(st.integers(0, 9)) > 0
    if not inside:
        return draw(leaves | anything)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _damage(draw, value[place]), *value[place + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    how = draw(st.integers(0, 9))
    if how == 0:
        return {name: item for name, item in value.items() if name != key}
    if how == 1:
        return {**value, draw(st.text(max_size=6)): value[key]}
    return {**value, key: _damage(draw, value[key])}
