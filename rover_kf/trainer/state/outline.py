# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a state looks like, but for its tensors' values: flat, so that two looks compare at once."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rover_kf.checkpoint.format import plain_data
from rover_kf.trainer.state import compiled_modules, dtensor, sharded_optimizers
from rover_kf.trainer.state import flatten as states
from rover_kf.trainer.state.json_template import EMPTY, Template, encode_number

_EXACT = frozenset((torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)))
_AS_THEY_ARE = frozenset((int, bool, str, bytes, type(None)))
_NUMBERS = frozenset((float, complex))
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_SHAPE, _DTYPE = operator.attrgetter("shape"), operator.attrgetter("dtype")
_LAYOUT = operator.attrgetter("layout")
_MOST_SECTIONS = 16
"""Of one dict; a module's, with a parameter for each key, is one section."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """One value of the state as it was encoded last."""

    path: tuple[object, ...]
    outline: list[object]
    """What is where: everything but tensors themselves and the values of scalars, flat."""
    tensors: list[torch.Tensor]
    scalars: list[object]
    """Numbers, texts and the like, in the order in which they are encoded."""
    value: object = None
    template: Template = EMPTY
    text: str = ""
    """As it is encoded."""
    escaped: str = ""
    """The same inside of a JSON text."""
    names: tuple[str, ...] = ()
    """Of its tensors, in order."""
    tensor_specs: Sequence[object] = ()
    """Shapes, types and layouts (strided or sparse) of its tensors."""
    layouts: Sequence[object] = ()
    """Of its DTensors, whose parts stand among the tensors."""

    def fixed_structure(self) -> object:
        """What may not change without a new start."""
        return self.path, self.names, self.tensor_specs, self.layouts


def tensor_specs(tensors: Collection[torch.Tensor]) -> list[object]:
    """Return shapes, types and layouts, as ``Section.tensor_specs`` has them."""
    return [*map(_SHAPE, tensors), *map(_DTYPE, tensors), *map(_LAYOUT, tensors)]


class NonPlainValue(Exception):
    """Something that only take_apart knows how to treat."""


def sections(state: Mapping[str, object]) -> Iterator[Section]:
    """The values of a state's dicts and of its objects' state dicts.

    Raises:
        Unplain: there is something that only take_apart knows how to treat.
    """
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
    if isinstance(target, torch.nn.Module):
        stock = type(target).state_dict is torch.nn.Module.state_dict
        # Parameters themselves cost less than views.
        found = target.state_dict(keep_vars=True) if stock else target.state_dict()
        return compiled_modules.strip_compile_prefixes(found)
    if isinstance(target, torch.optim.Optimizer):
        return _packed(target) or sharded_optimizers.state_dict_of(target)
    if states.is_stateful(target):
        return sharded_optimizers.state_dict_of(target)
    return target


def _packed(optimizer: torch.optim.Optimizer) -> dict[str, object] | None:
    """What ``Optimizer.state_dict`` gives, in a third of its time; None where only that knows.

    That it is the same is made sure of at each new start (rover_kf.trainer.state.flatten_cache).
    """
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict or _hooked(optimizer):
        return None
    parameters: list[int] = []
    groups: list[dict[str, object]] = []
    for group in optimizer.param_groups:
        begin = len(parameters)
        parameters.extend(map(id, group["params"]))
        others = {key: value for key, value in group.items() if key != "params"}
        groups.append({**others, "params": [*range(begin, len(parameters))]})
    keys = _numbers([*map(id, optimizer.state)], parameters)
    if keys is None:
        return None
    state = dict(zip(keys, optimizer.state.values(), strict=True))
    return {"state": state, "param_groups": groups}


def _numbers(keys: list[int], parameters: list[int]) -> Iterable[int] | None:
    """Which of the parameters the keys are; None: one is none, or some parameter is there twice."""
    if keys == parameters:  # a key is there once
        return range(len(keys))
    numbers = dict(zip(parameters, itertools.count(), strict=False))
    if len(numbers) != len(parameters) or not numbers.keys() >= {*keys}:
        return None
    return [numbers[key] for key in keys]


def _hooked(optimizer: torch.optim.Optimizer) -> bool:
    found = vars(optimizer)
    return any(value for name, value in found.items() if name.startswith("_optimizer_state_dict"))


def _section(path: tuple[object, ...], value: object) -> Section:
    found = _SectionParts([], [], [], [])
    _flatten(value, found)
    return Section(path, found.outline, found.tensors, found.scalars, value, layouts=found.layouts)


class _SectionParts(NamedTuple):
    """What a look has found so far; see Section."""

    outline: list[object]
    tensors: list[torch.Tensor]
    scalars: list[object]
    layouts: list[object]


def _flatten(value: object, parts: _SectionParts) -> None:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if not _tensors([value], parts):
            raise NonPlainValue
    elif isinstance(value, dict):
        _dict(value, parts)
    elif isinstance(value, (list, tuple)):
        parts.outline.extend((kind, len(value)))
        if not _plain(value, parts):
            for item in value:
                _flatten(item, parts)
    elif kind in _AS_THEY_ARE:
        parts.outline.append(kind)
        parts.scalars.append(value)
    elif isinstance(value, (float, complex)) and kind in _NUMBERS:
        parts.outline.append(kind)
        parts.scalars.append(encode_number(value))  # tells -0.0 from 0.0, and knows a nan again
    else:
        plain_value = plain_data.to_python_scalar(value)
        if plain_value is value:
            raise NonPlainValue
        _flatten(plain_value, parts)


def _dict(value: dict[Any, Any], parts: _SectionParts) -> None:
    outline = parts.outline
    outline.append(type(value))
    outline.extend(value)
    outline.extend(map(type, value))
    items = list(value.values())
    if not (_tensors(items, parts) or _tables(items, parts)):
        for item in items:
            _flatten(item, parts)
    outline.append(len(value))


def _plain(items: Sequence[Any], parts: _SectionParts) -> bool:
    """Take nothing but numbers and texts, as an optimizer counts its parameters."""
    kinds = [*map(type, items)]
    if not _AS_THEY_ARE.issuperset(kinds):
        return False
    parts.scalars.extend(items)
    parts.outline.extend(kinds)
    return True


def _tensors(items: list[Any], parts: _SectionParts) -> bool:
    """Take nothing but tensors: most of a state, so no call for each."""
    if _EXACT.issuperset(map(type, items)):
        parts.tensors.extend(items)
        parts.outline.append(torch.Tensor)
        return True
    kind = dtensor.dtensor_class()
    if kind is None or not {*_EXACT, kind}.issuperset(map(type, items)):
        return False
    sharded = [type(item) is kind for item in items]
    pairs = zip(items, sharded, strict=True)
    with torch.no_grad():  # then a part is the very object that the DTensor has, and costs little
        parts.tensors.extend([item.to_local() if there else item for item, there in pairs])
    parts.layouts.extend(map(dtensor.layout_of, itertools.compress(items, sharded)))
    parts.outline.extend((torch.Tensor, *sharded))
    return True


def _tables(items: list[Any], parts: _SectionParts) -> bool:
    """Take nothing but dicts of tensors, as an optimizer keeps one for each parameter."""
    if {*map(type, items)} != {dict}:
        return False
    keys = [*map(tuple, items)]
    if not all({*map(type, some)} == {str} for some in {*keys}):
        return False
    if not _tensors([*itertools.chain.from_iterable(map(dict.values, items))], parts):
        return False
    parts.outline.extend(keys)
    return True
