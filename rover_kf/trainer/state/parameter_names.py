# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The names of an optimizer's parameters, which torch itself numbers.

Numbers follow the order in which the script gave the parameters. A restarted script may give them
in another order, and numbers alone would bring each parameter another one's moments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch

from rover_kf.checkpoint.format.snapshot import reading
from rover_kf.trainer.state.compiled_modules import strip_compile_prefix

KEY = "rover.parameters"
"""Metadata: JSON of {optimizer's path: [[name or null of each parameter] of each group]}. A name is
the path of a module in the state and the parameter's name in it."""

Names = tuple[tuple[str | None, ...], ...]
"""By group; None: no module of the state has the parameter, and the script gave it no name."""


def names_of(members: Iterable[tuple[str, object]]) -> dict[str, Names]:
    """Name the parameters of each optimizer that has named ones."""
    found = [*members]
    by_identity: dict[int, str] = {}
    for path, module in found:
        if isinstance(module, torch.nn.Module):
            for name, parameter in module.named_parameters():
                by_identity.setdefault(id(parameter), f"{path}.{strip_compile_prefix(name)}")
    named = {
        path: tuple(
            tuple(by_identity.get(id(parameter)) for parameter in group["params"])
            for group in optimizer.param_groups
        )
        for path, optimizer in found
        if isinstance(optimizer, torch.optim.Optimizer)
    }
    return {path: names for path, names in named.items() if any(map(any, names))}


def to_text(names: Mapping[str, Names]) -> str:
    """As it stands in the metadata."""
    return json.dumps(names, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> Mapping[str, Names]:
    """Names by their optimizers' paths; none in a snapshot of tensors without modules.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("names of parameters"):
        found = json.loads(metadata.get(KEY, "{}"))
        return {path: tuple(tuple(group) for group in groups) for path, groups in found.items()}
