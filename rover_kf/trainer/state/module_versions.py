# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The versions of saved modules, which torch keeps in ``_metadata`` of a state dict.

A module that has changed its format (BatchNorm, quantized ones, a user's own) loads by its version.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

import torch

from rover_kf.checkpoint.format.snapshot import reading
from rover_kf.trainer.state.compiled_modules import strip_compile_prefix

KEY = "rover.modules"
"""Metadata: JSON of {object's path: {module's name in it: what torch tells}}, for all objects whose
state dict has versions; modules that have torch's default, version 1 and no more, are left out."""

Versions = Mapping[str, Mapping[str, Any]]
"""Of one object: what torch tells, by a module's name."""

_PLAIN = (bool, int, str, type(None))


def versions_of(state_dict: object) -> Versions | None:
    """What is kept of a state dict's versions; None: it has none."""
    told = getattr(state_dict, "_metadata", None)
    if not isinstance(told, Mapping):
        return None
    plain = {strip_compile_prefix(str(name)): _plain(facts) for name, facts in told.items()}
    return {name: facts for name, facts in plain.items() if facts != _default()}


def to_text(versions: Mapping[str, Versions]) -> str:
    """As it stands in the metadata."""
    return json.dumps(versions, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> Mapping[str, Versions]:
    """Versions by their objects' paths; none in a snapshot of before they were kept.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("versions of modules"):
        found = json.loads(metadata.get(KEY, "{}"))
        return {
            path: {name: {**facts} for name, facts in versions.items()}
            for path, versions in found.items()
        }


def with_versions(given: Any, target: object, kept: Versions | None) -> Any:
    """Return a state dict with its versions, as load_state_dict of the target needs it.

    ``kept`` is None if the snapshot has none: the module then counts as unchanged.
    """
    if kept is None and isinstance(target, torch.nn.Module):
        modules = target.named_modules(remove_duplicate=False)
        kept = {name: {"version": module._version} for name, module in modules}  # noqa: SLF001
    if kept is None or type(given) is not dict:
        return given
    found = collections.OrderedDict(given)
    versions = {strip_compile_prefix(name): facts for name, facts in kept.items()}
    found._metadata = _VersionsByName(versions)  # type: ignore[attr-defined] # noqa: SLF001 - torch's own way
    return found


class _VersionsByName(dict[str, Any]):
    """Versions by plain names, with those that were left out."""

    def __missing__(self, name: str) -> dict[str, Any]:
        return _default()

    def get(self, name: str, _: object = None) -> Any:
        """What torch asks with."""
        return self[strip_compile_prefix(name)]


def _default() -> dict[str, Any]:
    return {"version": 1}


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if type(fact) in _PLAIN}
