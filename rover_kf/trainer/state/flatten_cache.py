# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The same state taken apart again and again, at the cost of what changed since the last time.

Naming and encoding thousands of tensors takes longer than copying them. Between two saves only
plain values change (a learning rate, a counter), so the state is seen as sections, the values of
its dicts and of its objects' state dicts. A section that is what it was keeps its text; one with
other scalars alone has these put in; one of another outline is encoded anew; a tensor of another
shape or type anywhere means a new start.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from rover_kf.checkpoint.format import plain_data
from rover_kf.checkpoint.format.snapshot import STATE_KEY
from rover_kf.trainer.state import flatten as states
from rover_kf.trainer.state.addresses import LazyNames
from rover_kf.trainer.state.dtensor import NO_DTENSORS, DTensorLayouts
from rover_kf.trainer.state.flatten import FlatState
from rover_kf.trainer.state.json_template import Template, compact, escape, fill, template_of
from rover_kf.trainer.state.outline import NonPlainValue, Section, sections, tensor_specs

_ALIKE = frozenset((str, tuple))
"""Types of what an outline has over and over again: keys, and each parameter's keys together."""


class FlattenCache:
    """One a saver.

    Args:
        replicated: as for ``flatten``.
    """

    def __init__(self, *, replicated: bool = True) -> None:
        self._replicated = replicated
        self._sections: list[Section] = []
        self._metadata: Mapping[str, str] = {}
        self._written: Mapping[str, str] = {}
        self._between: Sequence[str] = ()
        self._between_escaped: Sequence[str] = ()
        self._dtensors = NO_DTENSORS
        self.generation = 0
        """Grows with every start; in one era names, shapes and types stay."""

    def flatten(self, state: Mapping[str, object]) -> FlatState:
        """What ``rover_kf.trainer.state.flatten.flatten`` gives, sooner.

        Args:
            state: of one rank.

        Raises:
            UnsupportedState: a value cannot be stored; the message has its path.
        """
        try:
            seen = list(sections(state))
        except NonPlainValue:
            self.generation += 1
            return self._flatten_anew(state)
        renewed = self._renew(seen)
        if renewed is None:
            return self._rebuild(state, seen)
        if any(new is not old for new, old in zip(renewed, self._sections, strict=True)):
            known, self._sections = self._sections, renewed
            if any(new.outline != old.outline for new, old in zip(renewed, known, strict=True)):
                # An optimizer may have got a group more.
                names = states.parameter_metadata(state)
                self._metadata = {**self._metadata, **names}
                self._written = {**self._written, **{k: compact(v) for k, v in names.items()}}
            text = fill(self._between, [section.text for section in renewed])
            escaped = fill(self._between_escaped, [section.escaped for section in renewed])
            self._metadata = {**self._metadata, STATE_KEY: text}
            self._written = {**self._written, STATE_KEY: f'"{escaped}"'}
        tensors = [*itertools.chain.from_iterable(section.tensors for section in seen)]
        named = LazyNames([known.names for known in renewed], tensors)
        return FlatState(named, self._metadata, self._dtensors, json_metadata=self._written)

    def clear(self) -> None:
        """Start anew at the next state."""
        self._sections = []
        self.generation += 1

    def _renew(self, seen: list[Section]) -> list[Section] | None:
        """Return the sections with their texts; None: another state than last time."""
        if len(seen) != len(self._sections):
            return None
        renewed: list[Section] = []
        for section, known in zip(seen, self._sections, strict=True):
            if section.path == known.path and section.outline == known.outline:
                if len(section.tensors) != len(known.names) or section.layouts != known.layouts:
                    return None
                if known.tensor_specs != tensor_specs(section.tensors):
                    return None
                renewed.append(
                    known if section.scalars == known.scalars else _with_scalars(section, known)
                )
                continue
            again = _encode(section)
            if again.fixed_structure() != known.fixed_structure() or len(section.tensors) != len(
                again.names
            ):
                return None
            if not again.template.has_scalars(again.scalars):
                return None
            renewed.append(again)
        return renewed

    def _flatten_anew(self, state: Mapping[str, object]) -> FlatState:
        return states.flatten(state, replicated=self._replicated)

    def _rebuild(self, state: Mapping[str, object], seen: list[Section]) -> FlatState:
        parts = self._flatten_anew(state)
        tree = json.loads(parts.metadata[STATE_KEY])
        known = [_section_in_tree(section, tree) for section in seen]
        between = _between(known)
        told = [
            (name, tensor)
            for section in known
            for name, tensor in zip(section.names, section.tensors, strict=False)
        ]
        fits = (
            fill(between, [section.text for section in known]) == parts.metadata[STATE_KEY]
            and all(section.template.has_scalars(section.scalars) for section in known)
            and all(len(section.names) == len(section.tensors) for section in known)
            and [name for name, _ in told] == list(parts.tensors)
            and all(_is_same(parts.tensors[name], tensor) for name, tensor in told)
        )
        self._sections = [_without_values(section) for section in known] if fits else []
        self._between = between
        self._between_escaped = [escape(text) for text in between]
        self._metadata, self._dtensors = parts.metadata, parts.dtensors
        self._written = {key: compact(text) for key, text in parts.metadata.items()}
        self.generation += 1
        return parts


def live_dtensors(state: Mapping[str, object], *, replicated: bool) -> DTensorLayouts:
    """Layouts of a state's DTensors; a state that has none is only looked over.

    Raises:
        UnsupportedState: a value cannot be stored; the message has its path.
    """
    try:
        sharded = any(section.layouts for section in sections(state))
    except NonPlainValue:
        sharded = True
    return states.flatten(state, replicated=replicated).dtensors if sharded else NO_DTENSORS


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two looks have found the same; some objects make their tensors anew at each look."""
    if tensor.data_ptr() == other.data_ptr():
        return True
    try:
        return tensor_specs([tensor]) == tensor_specs([other]) and torch.equal(tensor, other)
    except RuntimeError:  # of a type that torch cannot compare
        return False


def _without_values(section: Section) -> Section:
    # What was given up must be freed: neither tensors nor values are kept. Marks and texts that are
    # alike become one object: the next save then compares with a few, which stay in the cache.
    alike: dict[object, object] = {}
    outline = [
        alike.setdefault(mark, mark) if type(mark) in _ALIKE else mark for mark in section.outline
    ]
    seen = [alike.setdefault(mark, mark) for mark in tensor_specs(section.tensors)]
    return dataclasses.replace(section, outline=outline, tensor_specs=seen, tensors=[], value=None)


def _with_scalars(section: Section, cached: Section) -> Section:
    """The known section with another one's scalars."""
    template = cached.template.with_scalars(cached.scalars, section.scalars)
    return _with_text(cached, template, cached.names, section.scalars)


def _with_text(
    section: Section, template: Template, names: tuple[str, ...], scalars: list[object]
) -> Section:
    text = template.text()
    return dataclasses.replace(
        section, scalars=scalars, template=template, text=text, escaped=escape(text), names=names
    )


def _encode(section: Section) -> Section:
    """The section with its text, made anew."""
    value = section.value
    for key in reversed(section.path):
        value = {key: value}
    assert isinstance(value, dict)  # noqa: S101 - a path has a key
    parts = states.flatten(value)
    return _without_values(_section_in_tree(section, json.loads(parts.metadata[STATE_KEY])))


def _section_in_tree(section: Section, tree: Any) -> Section:
    """The section with the text that it has in the whole state's."""
    node = tree
    for key in section.path:
        wanted = plain_data.encode(key)
        node = next(item for name, item in node["d"] if name == wanted)
    return _with_text(section, template_of(node), tuple(_names(node)), section.scalars)


def _names(node: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    ((tag, content),) = node.items()
    if tag == "T":
        yield content
    elif tag in ("l", "t"):
        for item in content:
            yield from _names(item)
    elif tag in ("d", "n"):
        for _, item in content:
            yield from _names(item)


def _between(sections: list[Section]) -> tuple[str, ...]:
    """What stands before, between and after the sections' texts in the whole state's."""
    texts, before = [], '{"d":['
    for key, group in itertools.groupby(sections, key=lambda section: section.path[0]):
        before += f"[{compact(plain_data.encode(key))},"
        members = list(group)
        nested = len(members[0].path) > 1
        for index, member in enumerate(members):
            if nested:
                begin = "]," if index else '{"d":['
                before += f"{begin}[{compact(plain_data.encode(member.path[1]))},"
            texts.append(before)
            before = ""
        before = "]]}]," if nested else "],"
    return (*texts, before.removesuffix(",") + "]}")
