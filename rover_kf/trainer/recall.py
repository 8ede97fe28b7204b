# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The same state taken apart again and again, at the cost of what changed since the last time.

Naming and encoding thousands of tensors takes longer than copying them. Between two saves only
plain values change (a learning rate, a counter), so the state is seen as sections, the values of
its dicts and of its objects' state dicts. A section whose outline is what it was keeps its text;
one with another plain value is encoded anew; another tensor anywhere means a new start.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rover_kf.checkpoint import plain
from rover_kf.checkpoint.snapshot import STATE_KEY
from rover_kf.trainer import state as states
from rover_kf.trainer.state import Parts, Stateful

_EXACT = frozenset((torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)))
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_MOST_SECTIONS = 16
"""Of one dict; a module's, with a parameter for each key, is one section."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Section:
    """One value of the state as it was encoded last."""

    path: tuple[object, ...]
    outline: list[object]
    """Everything but the tensors' values, flat."""
    tensors: list[torch.Tensor]
    value: object = None
    text: str = ""
    names: tuple[str, ...] = ()
    """Of its tensors, in order."""

    def shape(self) -> object:
        """What may not change without a new start."""
        kinds = (torch.Size, torch.dtype)
        return self.path, self.names, [mark for mark in self.outline if isinstance(mark, kinds)]


class _Unplain(Exception):
    """Something that only take_apart knows how to treat."""


class Recall:
    """One a saver.

    Args:
        replicated: as for take_apart.
    """

    def __init__(self, *, replicated: bool = True) -> None:
        self._replicated = replicated
        self._known: list[_Section] = []
        self._metadata: Mapping[str, str] = {}
        self.era = 0
        """Grows with every start; in one era names, shapes and types stay."""

    def take_apart(self, state: Mapping[str, object]) -> Parts:
        """What ``rover_kf.trainer.state.take_apart`` gives, sooner.

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
        """
        try:
            seen = list(_sections(state))
        except _Unplain:
            self.era += 1
            return states.take_apart(state, replicated=self._replicated)
        renewed = self._renew(seen)
        if renewed is None:
            return self._start(state, seen)
        if any(new is not old for new, old in zip(renewed, self._known, strict=True)):
            self._metadata = {**self._metadata, STATE_KEY: _tree_text(renewed)}
            self._known = renewed
        tensors: dict[str, torch.Tensor] = {}
        for section, known in zip(seen, renewed, strict=True):
            tensors.update(zip(known.names, section.tensors, strict=True))
        return Parts(tensors, self._metadata)

    def forget(self) -> None:
        """Start anew at the next state."""
        self._known = []
        self.era += 1

    def _renew(self, seen: list[_Section]) -> list[_Section] | None:
        """The sections with their texts; None: another state than last time."""
        if len(seen) != len(self._known):
            return None
        renewed: list[_Section] = []
        for section, known in zip(seen, self._known, strict=True):
            if section.path == known.path and section.outline == known.outline:
                renewed.append(known)
                continue
            again = _encoded(section)
            if again.shape() != known.shape():
                return None
            renewed.append(again)
        return renewed

    def _start(self, state: Mapping[str, object], seen: list[_Section]) -> Parts:
        parts = states.take_apart(state, replicated=self._replicated)
        tree = json.loads(parts.metadata[STATE_KEY])
        known = [_found(section, tree) for section in seen]
        told = [
            (name, tensor)
            for section in known
            for name, tensor in zip(section.names, section.tensors, strict=False)
        ]
        fits = (
            _tree_text(known) == parts.metadata[STATE_KEY]
            and all(len(section.names) == len(section.tensors) for section in known)
            and [name for name, _ in told] == list(parts.tensors)
            and all(parts.tensors[name].data_ptr() == tensor.data_ptr() for name, tensor in told)
        )
        self._known = [_without_values(section) for section in known] if fits else []
        self._metadata = parts.metadata
        self.era += 1
        return parts


def _without_values(section: _Section) -> _Section:
    # What was given up must be freed: neither tensors nor values are kept.
    return dataclasses.replace(section, tensors=[], value=None)


def _sections(state: Mapping[str, object]) -> Iterator[_Section]:
    for key, value in state.items():
        inner = _inner(value)
        if isinstance(inner, dict) and 0 < len(inner) <= _MOST_SECTIONS and type(inner) in _DICTS:
            for name, item in inner.items():
                yield _section((key, name), item)
        else:
            yield _section((key,), inner)


def _inner(value: object) -> object:
    target = states.unwrap(value)
    if isinstance(target, (torch.Tensor, dict, list, tuple, int, float, str, bytes)):
        return target
    if isinstance(target, Stateful) and not isinstance(target, type):
        stock = type(target).state_dict is torch.nn.Module.state_dict
        if stock and isinstance(target, torch.nn.Module):
            return target.state_dict(keep_vars=True)  # parameters themselves cost less than views
        return target.state_dict()
    return target


def _section(path: tuple[object, ...], value: object) -> _Section:
    outline: list[object] = []
    tensors: list[torch.Tensor] = []
    _flatten(value, outline, tensors)
    return _Section(path, outline, tensors, value)


def _flatten(value: object, outline: list[object], tensors: list[torch.Tensor]) -> None:
    kind = type(value)
    if kind in _EXACT:
        _mark(value, outline, tensors)
    elif isinstance(value, dict):
        outline.append(kind)
        outline.extend(value)
        outline += [type(key) for key in value if type(key) is not str]
        items = list(value.values())
        if not (_tensors(items, outline, tensors) or _tables(items, outline, tensors)):
            for item in items:
                _flatten(item, outline, tensors)
        outline.append(len(value))
    elif isinstance(value, (list, tuple)):
        outline += (kind, len(value))
        for item in value:
            _flatten(item, outline, tensors)
    elif kind is float:
        outline += (repr(value), kind)  # tells -0.0 from 0.0, and knows a nan again
    elif value is None or kind in (bool, int, str, bytes, complex):
        outline += (kind, repr(value) if kind is complex else value)
    else:
        raise _Unplain


def _tensors(items: list[Any], outline: list[object], tensors: list[torch.Tensor]) -> bool:
    """Take nothing but tensors: most of a state, so no call for each."""
    if not _EXACT.issuperset(map(type, items)):
        return False
    tensors += items
    outline += [item.shape for item in items]
    outline += [item.dtype for item in items]
    return True


def _tables(items: list[Any], outline: list[object], tensors: list[torch.Tensor]) -> bool:
    """Take nothing but dicts of tensors, as an optimizer keeps one for each parameter."""
    if {*map(type, items)} != {dict}:
        return False
    try:
        keys = ["\0".join(item) for item in items]
    except TypeError:  # a key that is no text
        return False
    inner = [value for item in items for value in item.values()]
    if not _tensors(inner, outline, tensors):
        return False
    outline += keys
    outline += [len(item) for item in items]
    return True


def _mark(value: Any, outline: list[object], tensors: list[torch.Tensor]) -> None:
    tensors.append(value)
    outline += (value.shape, value.dtype)


def _encoded(section: _Section) -> _Section:
    """The section with its text, made anew."""
    value = section.value
    for key in reversed(section.path):
        value = {key: value}
    assert isinstance(value, dict)  # noqa: S101 - a path has a key
    parts = states.take_apart(value)
    return _without_values(_found(section, json.loads(parts.metadata[STATE_KEY])))


def _found(section: _Section, tree: Any) -> _Section:
    """The section with the text that it has in the whole state's."""
    node = tree
    for key in section.path:
        wanted = plain.encode(key)
        node = next(item for name, item in node["d"] if name == wanted)
    return dataclasses.replace(section, text=_compact(node), names=tuple(_names(node)))


def _names(node: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    ((tag, content),) = node.items()
    if tag == "T":
        yield content
    elif tag in ("l", "t"):
        for item in content:
            yield from _names(item)
    elif tag == "d":
        for _, item in content:
            yield from _names(item)


def _tree_text(sections: list[_Section]) -> str:
    pairs: list[str] = []
    for key, group in itertools.groupby(sections, key=lambda section: section.path[0]):
        members = list(group)
        if len(members[0].path) == 1:
            text = members[0].text
        else:
            inner = (f"[{_compact(plain.encode(m.path[1]))},{m.text}]" for m in members)
            text = f'{{"d":[{",".join(inner)}]}}'
        pairs.append(f"[{_compact(plain.encode(key))},{text}]")
    return f'{{"d":[{",".join(pairs)}]}}'


def _compact(node: Any) -> str:
    return json.dumps(node, separators=(",", ":"))
