# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Names of modules without what ``torch.compile`` puts into them (``_orig_mod``).

Checkpoints have names without it, as in torch.distributed.checkpoint, so that a script may compile
its model, or not, after a restart.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import torch

_WRAPPED = "_orig_mod"


def is_compiled(value: object) -> bool:
    """Whether it is a module that torch.compile has made of another one."""
    # By its name: a script that compiles nothing need not wait for the compiler's import.
    return isinstance(value, torch.nn.Module) and type(value).__name__ == "OptimizedModule"


def original_module(module: Any) -> object:
    """The module that it was made of."""
    return getattr(module, _WRAPPED)


def strip_compile_prefix(name: str) -> str:
    """A module's or tensor's name as it is without compiling."""
    if _WRAPPED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def strip_compile_prefixes(state_dict: Any) -> Any:
    """A module's state dict with the names that it would have without compiling."""
    if not _has_compiled(state_dict):
        return state_dict
    return collections.OrderedDict(
        (strip_compile_prefix(key), item) for key, item in state_dict.items()
    )


def rename_for_module(state_dict: Any, module: torch.nn.Module) -> Any:
    """Return a saved state dict with the names of a module, compiled or not."""
    if not isinstance(state_dict, dict):  # a form of the module's own
        return state_dict
    own = {
        strip_compile_prefix(name): name for name, _ in module.named_modules(remove_duplicate=False)
    }
    if all(plain == name for plain, name in own.items()):
        return {**strip_compile_prefixes(state_dict)}
    return {
        _name_in_module(key, own): item for key, item in strip_compile_prefixes(state_dict).items()
    }


def _name_in_module(key: Any, module_names: Mapping[str, str]) -> Any:
    """A tensor's, by its module's."""
    if not isinstance(key, str):
        return key
    module, _, last = key.rpartition(".")
    return ".".join(filter(None, (module_names.get(module, module), last)))


def _has_compiled(state_dict: Any) -> bool:
    """In a few microseconds for thousands of names: each save asks."""
    if not isinstance(state_dict, Mapping):
        return False
    try:
        return _WRAPPED in "".join(state_dict)
    except TypeError:  # a module's own form, whose keys are no names
        return False
