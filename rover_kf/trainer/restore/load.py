# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Saved values brought into a live state, in place: what rover_kf.trainer.state.flatten took apart.

In two halves: what can be done before it is known that the snapshot is the one to go on from
(names, memory of its own for what gets some), and what changes the live state.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from rover_kf import errors
from rover_kf.checkpoint.format import plain_data
from rover_kf.checkpoint.format.snapshot import STATE_KEY
from rover_kf.checkpoint.format.tensor_layout import Piece
from rover_kf.trainer.restore.compatibility import (
    check_lacking,
    check_replaceable,
    check_shape,
    converts,
    fitting,
)
from rover_kf.trainer.restore.optimizer_parameters import found_sooner
from rover_kf.trainer.restore.parallel_copy import Copies
from rover_kf.trainer.restore.quantized_layers import take_beside
from rover_kf.trainer.staging.copy_threads import Hands
from rover_kf.trainer.state import dtensor_layouts, module_versions, strides
from rover_kf.trainer.state.compiled_modules import own_names
from rover_kf.trainer.state.dtensor import NONE, Shard, Shards
from rover_kf.trainer.state.dtensor_layouts import Layout, laid
from rover_kf.trainer.state.flatten import copyable, is_stateful, unwrap
from rover_kf.trainer.state.module_versions import Versions, with_versions
from rover_kf.trainer.state.strides import Strides

_Placing = Callable[[], Any]
"""Gives the value that stands in the live one's place from now on: the live one where it can."""

_TAGS: Mapping[type, str] = {**dict.fromkeys(plain_data.MAPPINGS, "d"), list: "l", tuple: "t"}
"""Of what is filled in place: how rover_kf.checkpoint.format.plain_data marks it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """What the snapshot holds, by name."""

    tensors: Mapping[str, torch.Tensor]
    shards: Shards
    pieces: Mapping[str, Piece]
    """Those that are parts of larger tensors."""
    versions: Mapping[str, Versions]
    """Of modules, by the paths of the objects that have them."""
    layouts: Mapping[str, Layout]
    """Of DTensors that the live state may have none of."""
    strides: Mapping[str, Strides]
    """Of tensors that did not lie row by row."""
    copies: Copies

    def view(self, name: str) -> torch.Tensor:
        """For who copies from it and lets go of it."""
        part = self.tensors[name]
        shard = self._shard(name)
        return shard.join(name, part, self.pieces.get(name)) if shard is not None else part

    def copy(self, name: str) -> torch.Tensor:
        """For who may keep it; its values are there after ``copies.fill``."""
        part, kept = self.tensors[name], self.pieces.get(name)
        shard, layout = self._shard(name), self.layouts.get(name)
        if shard is None and layout is not None and self.shards is not NONE:
            shard, part = laid(name, layout, part, kept, self.shards)
            kept = kept or shard.piece
        if shard is None:
            return self.copies.of(part, self.strides.get(name))
        if shard.mesh.device_type != "cpu":
            return shard.join(name, part, kept)  # which copies it to the device
        return shard.join(name, self.copies.of(part), kept)

    def _shard(self, name: str) -> Shard | None:
        return self.shards.of(name, self.tensors[name], self.pieces.get(name))


class Loading:
    """A live state's next values, at hand; nothing of it has changed until ``finish``.

    Args:
        state: as it was given to save, freshly built.
        metadata: of the snapshot.
        tensors: views of the snapshot's bytes; always copied from, never handed out.
        shards: layouts of the live state's DTensors.
        pieces: what the snapshot says of tensors that it holds parts of.
        hands: threads that help with copying, from now on.

    Raises:
        CheckpointError: the snapshot lacks something that the state has.
        TornSnapshot: the snapshot's plain data is damaged.
    """

    def __init__(
        self,
        state: dict[str, Any],
        metadata: Mapping[str, str],
        tensors: Mapping[str, torch.Tensor],
        shards: Shards = NONE,
        pieces: Mapping[str, Piece] = MappingProxyType({}),
        *,
        hands: Hands,
    ) -> None:
        try:
            tree = json.loads(metadata[STATE_KEY])
        except (KeyError, ValueError) as cause:
            raise errors.TornSnapshot(f"a snapshot without a state: {cause!r}") from cause
        self._copies = Copies(hands)
        versions, found = module_versions.read(metadata), dtensor_layouts.read(metadata)
        lies = strides.read(metadata)
        parts = _Parts(tensors, shards, pieces, versions, found, lies, self._copies)
        try:
            with _for_all_modes():
                self._place = _dict(state, tree, parts, "")
        except BaseException:  # whatever it is: nobody else can end what was begun
            self._copies.drop()
            raise

    def go_ahead(self, is_over: Callable[[], bool]) -> None:
        """Copy what goes into memory of its own, which nobody sees before ``finish``.

        Args:
            is_over: whether ``finish`` could begin.
        """
        self._copies.go_ahead(is_over)

    def finish(self) -> None:
        """Bring the values into the live state; plain values of its dicts are replaced."""
        with torch.no_grad():
            self._copies.fill()
            self._place()

    def drop(self) -> None:
        """It is another snapshot that is wanted; the live state is as it was."""
        self._copies.drop()


@contextlib.contextmanager
def _for_all_modes() -> Iterator[None]:
    """What is made is no inference tensor: a restore inside that mode is for training outside."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def _dict(live: dict[Any, Any], tree: Any, parts: _Parts, path: str) -> _Placing:
    saved = _pairs(tree, path)
    check_lacking(live, saved.keys(), path)
    placings = {
        key: _placing(live.get(key), subtree, parts, f"{path}[{key!r}]")
        for key, subtree in saved.items()
    }

    def place() -> Any:
        values = {key: placing() for key, placing in placings.items()}
        if path and type(live) is not dict:  # an OrderedDict's order may mean something
            live.clear()
        live.update(values)
        return live

    return place


def _items(
    live: list[Any] | tuple[Any, ...], trees: list[Any], parts: _Parts, path: str
) -> _Placing:
    placings = [
        _placing(item, subtree, parts, f"{path}[{index}]")
        for index, (item, subtree) in enumerate(zip(live, trees, strict=True))
    ]

    def place() -> Any:
        items = [placing() for placing in placings]
        if isinstance(live, tuple):
            return tuple(items)
        live[:] = items
        return live

    return place


def _placing(live: Any, tree: Any, parts: _Parts, path: str) -> _Placing:
    target: Any = unwrap(live)
    if isinstance(target, torch.Tensor):
        return _tensor(live, target, tree, parts, path)
    if is_stateful(target):
        return _stateful(live, target, tree, parts, path)
    content = tree.get(_TAGS.get(type(live), "")) if isinstance(tree, dict) else None
    if isinstance(live, dict) and content is not None:
        return _dict(live, tree, parts, path)
    if content is not None and len(content) == len(live):
        return _items(live, content, parts, path)
    return _replacing(live, tree, parts, path)


def _replacing(live: Any, tree: Any, parts: _Parts, path: str) -> _Placing:
    check_replaceable(live, tree, path)
    kept = plain_data.decode(tree, parts.copy)
    if type(live) is not type(kept) or not isinstance(live, (list, collections.Counter)):
        return lambda: kept

    def place() -> Any:  # the script may have it by another name, too, as it may a dict
        live.clear()
        (live.extend if isinstance(live, list) else live.update)(kept)
        return live

    return place


def _tensor(live: Any, target: torch.Tensor, tree: Any, parts: _Parts, path: str) -> _Placing:
    found = plain_data.decode(tree, parts.view)
    if not isinstance(found, torch.Tensor):
        return _replacing(live, tree, parts, path)
    if found.shape != target.shape:
        check_shape(target, found, path)
        return _replacing(live, tree, parts, path)
    if not converts(found.dtype, target):
        return _replacing(live, tree, parts, path)
    if parts.copies.into(target, found):
        return lambda: live

    def place() -> Any:
        with torch.inference_mode(mode=target.is_inference()), torch.no_grad():
            copyable(target).copy_(copyable(found))
        return live

    return place


def _stateful(live: Any, target: Any, tree: Any, parts: _Parts, path: str) -> _Placing:
    given = with_versions(_given(target, tree, parts), target, parts.versions.get(path))

    # All others take their state back in the script's own mode: a module may have been made in it.
    mode = _for_all_modes if isinstance(target, torch.optim.Optimizer) else contextlib.nullcontext

    def place() -> Any:
        with mode(), fitting(target, path):
            if isinstance(target, torch.nn.Module):
                take_beside(given, target, path)
            target.load_state_dict(given)
        return live

    return place


def _given(target: object, tree: Any, parts: _Parts) -> Any:
    """What load_state_dict is called with, once copies are filled."""
    # A module copies into its own parameters. Optimizers keep what they are given, and so may a
    # module that does more than copy, or has extra state: those get copies of their own.
    if isinstance(target, torch.optim.Optimizer):
        return found_sooner(target, plain_data.decode(tree, parts.copy))
    if not isinstance(target, torch.nn.Module):
        return plain_data.decode(tree, parts.copy)
    own = _own_tensors(target)
    if not own or any(str(key).endswith("_extra_state") for key in _pairs(tree, "")):
        return own_names(plain_data.decode(tree, parts.copy), target)
    given = own_names(plain_data.decode(tree, parts.view), target)
    for name, tensor in own.items():
        if isinstance(given.get(name), torch.Tensor) and parts.copies.into(tensor, given[name]):
            given[name] = tensor  # which copy_ knows as the same
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
        return {plain_data.decode(key, _no_tensor): item for key, item in tree["d"]}
    except (TypeError, KeyError, ValueError) as cause:
        raise errors.DoesNotFit(f"state{path} was not saved as a dict") from cause


def _no_tensor(name: str) -> object:
    raise errors.TornSnapshot(f"{name} stands as a key")
