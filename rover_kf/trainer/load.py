# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Saved values brought into a live state, in place: what rover_kf.trainer.state took apart."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint import plain
from rover_kf.checkpoint.snapshot import STATE_KEY
from rover_kf.trainer.copies import Copies
from rover_kf.trainer.hands import Hands
from rover_kf.trainer.recovery import opened
from rover_kf.trainer.shards import NONE, Shards
from rover_kf.trainer.state import copyable, is_stateful, unwrap
from rover_kf.trainer.views import views


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """What the snapshot holds, by name."""

    tensors: Mapping[str, torch.Tensor]
    shards: Shards
    copies: Copies

    def view(self, name: str) -> torch.Tensor:
        """For who copies from it and lets go of it."""
        return self._joined(name, self.tensors[name])

    def copy(self, name: str) -> torch.Tensor:
        """For who may keep it; its values are there after ``copies.fill``."""
        return self._joined(name, self.copies.of(self.tensors[name]))

    def kept(self, tree: Any) -> Any:
        """A part of the state whose tensors are copies, filled."""
        found = plain.decode(tree, self.copy)
        self.copies.fill()
        return found

    def _joined(self, name: str, part: torch.Tensor) -> torch.Tensor:
        shard = self.shards.of(name, part)
        return shard.join(name, part) if shard is not None else part


def from_slot(reply: RestoreReply, state: dict[str, Any], shards: Shards, threads: int = 1) -> None:
    """Bring the slot that the sidecar has filled into a live state.

    Args:
        reply: the sidecar's.
        state: as it was given to save, freshly built.
        shards: layouts of its DTensors.
        threads: that may copy.

    Raises:
        TornSnapshot: the slot no longer holds that step.
        CheckpointError: the snapshot lacks something that the state has.
    """
    with opened(reply) as (found, buffer):
        put_together(state, found.metadata, views(buffer, found.tensors), shards, threads)


def put_together(
    state: dict[str, Any],
    metadata: Mapping[str, str],
    tensors: Mapping[str, torch.Tensor],
    shards: Shards = NONE,
    threads: int = 1,
) -> None:
    """Bring saved values into a live state, in place.

    Args:
        state: as it was given to save, freshly built; its plain values are replaced, modules and
            the like are loaded, tensors are overwritten.
        metadata: of the snapshot.
        tensors: views of the snapshot's bytes; always copied from, never handed out.
        shards: layouts of the live state's DTensors.
        threads: that may copy.

    Raises:
        CheckpointError: the snapshot lacks something that the state has.
        TornSnapshot: the snapshot's plain data is damaged.
    """
    try:
        tree = json.loads(metadata[STATE_KEY])
    except (KeyError, ValueError) as cause:
        raise errors.TornSnapshot(f"a snapshot without a state: {cause!r}") from cause
    hands = Hands(threads - 1)
    parts = _Parts(tensors, shards, Copies(hands))
    try:
        with torch.no_grad():
            _into_dict(state, tree, parts, "")
            parts.copies.fill()
    finally:
        hands.close()


def _into_dict(live: dict[Any, Any], tree: Any, parts: _Parts, path: str) -> None:
    saved = _pairs(tree, path)
    for key, value in live.items():
        if key not in saved and (is_stateful(value) or isinstance(value, torch.Tensor)):
            raise errors.CheckpointError(
                f"state{path}[{key!r}] is not in the checkpoint, which has "
                f"{sorted(map(str, saved))}; was it saved by another script?"
            )
    for key, subtree in saved.items():
        live[key] = _into(live.get(key), subtree, parts, f"{path}[{key!r}]")


def _into(live: Any, tree: Any, parts: _Parts, path: str) -> Any:
    """The value to stand in the live value's place; the live one itself where it can stay."""
    target: Any = unwrap(live)
    if isinstance(target, torch.Tensor):
        found = plain.decode(tree, parts.view)
        fits = isinstance(found, torch.Tensor) and found.shape == target.shape
        if fits and found.dtype == target.dtype:
            if not parts.copies.into(target, found):
                copyable(target).copy_(copyable(found))
            return live
    elif is_stateful(target):
        target.load_state_dict(_given(target, tree, parts))
        return live
    elif type(live) is dict and isinstance(tree, dict) and "d" in tree:
        _into_dict(live, tree, parts, path)
        return live
    elif type(live) is list and isinstance(tree, dict) and len(tree.get("l", ())) == len(live):
        live[:] = [
            _into(item, subtree, parts, f"{path}[{index}]")
            for index, (item, subtree) in enumerate(zip(live, tree.get("l", ()), strict=True))
        ]
        return live
    return parts.kept(tree)


def _given(target: object, tree: Any, parts: _Parts) -> Any:
    """What load_state_dict is called with."""
    # A module copies into its own parameters. Optimizers keep what they are given, and so may a
    # module's extra state: those get copies of their own.
    if not isinstance(target, torch.nn.Module):
        return parts.kept(tree)
    if any(str(key).endswith("_extra_state") for key in _pairs(tree, "")):
        return parts.kept(tree)
    given = plain.decode(tree, parts.view)
    for name, tensor in _own_tensors(target).items():
        if isinstance(given.get(name), torch.Tensor) and parts.copies.into(tensor, given[name]):
            given[name] = tensor  # which copy_ knows as the same
    parts.copies.fill()
    return given


def _own_tensors(module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Tensors that may be overwritten ahead of load_state_dict; none if it does more than copy."""
    for part in module.modules():
        own = type(part).__module__.partition(".")[0] == "torch"
        stock = type(part)._load_from_state_dict is torch.nn.Module._load_from_state_dict  # noqa: SLF001
        if part._load_state_dict_pre_hooks or not (own or stock):  # noqa: SLF001
            return {}
    if type(module).load_state_dict is not torch.nn.Module.load_state_dict:
        return {}
    return module.state_dict(keep_vars=True)


def _pairs(tree: Any, path: str) -> dict[Any, Any]:
    try:
        return {plain.decode(key, _no_tensor): item for key, item in tree["d"]}
    except (TypeError, KeyError, ValueError) as cause:
        raise errors.CheckpointError(f"state{path} was not saved as a dict") from cause


def _no_tensor(name: str) -> object:
    raise errors.TornSnapshot(f"{name} stands as a key")
