# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What of a state is no tensor: numbers, strings and the like, each by its path; pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from rover_kf.checkpoint.format import plain_data
from rover_kf.checkpoint_tools.consolidated_state import TensorReference


@dataclasses.dataclass(frozen=True, slots=True)
class PlainValue:
    """One plain value; a list or tuple of such counts as one."""

    name: str
    """Path as in tensors' names: ``optimizer.param_groups.0.lr``."""
    path: tuple[str, ...]
    """The same, with the types of keys and containers."""
    content: Any

    @property
    def encoded(self) -> Any:
        """As JSON that keeps its type (rover_kf.checkpoint.format.plain_data)."""
        return plain_data.encode(self.content)

    @property
    def text(self) -> str:
        """Its type and content, exactly: nan equals nan, 1 is not 1.0, 0.0 is not -0.0."""
        return json.dumps(self.encoded, sort_keys=True)


def iter_values(tree: dict[Any, Any]) -> Iterator[PlainValue]:
    """Every plain value of a state.

    Args:
        tree: the state, a Reference in place of every tensor.
    """
    yield from _below(tree, (), ())


def _below(value: Any, names: tuple[str, ...], path: tuple[str, ...]) -> Iterator[PlainValue]:
    if isinstance(value, TensorReference):
        return
    if isinstance(value, dict) and value:
        for key, item in value.items():
            name = str(key) if isinstance(key, (str, int)) else repr(key)
            step = f"d{json.dumps(plain_data.encode(key))}"
            yield from _below(item, (*names, name), (*path, step))
    elif isinstance(value, (list, tuple)) and any(map(_is_branch, value)):
        for index, item in enumerate(value):
            step = f"{type(value).__name__}{index}"
            yield from _below(item, (*names, str(index)), (*path, step))
    else:
        yield PlainValue(".".join(names), path, value)


def _is_branch(value: Any) -> bool:
    """Whether it is, or holds, more than plain values in a row."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_branch, value))
    return isinstance(value, (TensorReference, dict))


def replace_references(tree: dict[Any, Any], tensor: Callable[[str], object]) -> dict[Any, Any]:
    """The state with a tensor in place of every Reference.

    Args:
        tree: the state.
        tensor: gives the tensor of a name.
    """
    return {key: _replace(item, tensor) for key, item in tree.items()}


def _replace(value: Any, tensor: Callable[[str], object]) -> Any:
    if isinstance(value, TensorReference):
        return tensor(value.name)
    if isinstance(value, dict):
        return type(value)(replace_references(value, tensor))  # a Counter stays one
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(item, tensor) for item in value)
    return value
