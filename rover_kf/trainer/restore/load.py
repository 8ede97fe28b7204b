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
from rover_kf.checkpoint.format.tensor_layout import TensorShard
from rover_kf.trainer.restore.compatibility import (
    check_missing,
    check_replaceable,
    check_shape,
    compatible,
    is_convertible,
)
from rover_kf.trainer.restore.optimizer_parameters import (
    ParameterOrder,
    index_parameters,
)
from rover_kf.trainer.restore.parallel_copy import ParallelCopies
from rover_kf.trainer.restore.quantized_layers import load_quant_state
from rover_kf.trainer.restore.trial_load import check_module, check_optimizer
from rover_kf.trainer.staging.copy_threads import CopyThreads
from rover_kf.trainer.state import (
    dtensor_layouts,
    module_versions,
    parameter_names,
    shard_boxes,
    strides,
)
from rover_kf.trainer.state.compiled_modules import rename_for_module
from rover_kf.trainer.state.dtensor import NO_DTENSORS, DTensorLayouts, LocalShard
from rover_kf.trainer.state.dtensor_layouts import SavedLayout, rebuild
from rover_kf.trainer.state.flatten import (
    copyable,
    is_stateful,
    name_of_path,
    stateful_members,
    unwrap,
)
from rover_kf.trainer.state.module_versions import Versions, with_versions
from rover_kf.trainer.state.shard_boxes import ShardBox, check_boxes
from rover_kf.trainer.state.strides import Strides

_Apply = Callable[[], Any]
"""Gives the value that stands in the live one's place from now on: the live one where it can."""

_TAGS: Mapping[type, str] = {**dict.fromkeys(plain_data.MAPPINGS, "d"), list: "l", tuple: "t"}
"""Of what is filled in place: how rover_kf.checkpoint.format.plain_data marks it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _SavedValues:
    """What the snapshot holds, by name."""

    tensors: Mapping[str, torch.Tensor]
    dtensors: DTensorLayouts
    pieces: Mapping[str, TensorShard]
    """Those that are parts of larger tensors."""
    versions: Mapping[str, Versions]
    """Of modules, by the paths of the objects that have them."""
    layouts: Mapping[str, SavedLayout]
    """Of DTensors that the live state may have none of."""
    strides: Mapping[str, Strides]
    """Of tensors that did not lie row by row."""
    boxes: Mapping[str, ShardBox]
    """That plain tensors of optimizers are about."""
    order: ParameterOrder
    """Of optimizers' parameters."""
    copies: ParallelCopies

    def view(self, name: str) -> torch.Tensor:
        """For who copies from it and lets go of it."""
        part = self.tensors[name]
        shard = self._shard(name)
        return shard.to_dtensor(name, part, self.pieces.get(name)) if shard is not None else part

    def copy(self, name: str) -> torch.Tensor:
        """For who may keep it; its values are there after ``copies.fill``."""
        part, kept = self.tensors[name], self.pieces.get(name)
        shard, layout = self._shard(name), self.layouts.get(name)
        if shard is None and layout is not None and self.dtensors is not NO_DTENSORS:
            shard, part = rebuild(name, layout, part, kept, self.dtensors)
            kept = kept or shard.piece
        if shard is None:
            return self.copies.schedule_copy(part, self.strides.get(name))
        if shard.mesh.device_type != "cpu":
            return shard.to_dtensor(name, part, kept)  # which copies it to the device
        return shard.to_dtensor(name, self.copies.schedule_copy(part), kept)

    def _shard(self, name: str) -> LocalShard | None:
        return self.dtensors.layout_for(name, self.tensors[name], self.pieces.get(name))


class StateLoader:
    """A live state's next values, at hand; nothing of it has changed until ``finish``.

    Args:
        state: as it was given to save, freshly built.
        metadata: of the snapshot.
        tensors: views of the snapshot's bytes; always copied from, never handed out.
        dtensors: layouts of the live state's DTensors.
        pieces: what the snapshot says of tensors that it holds parts of.
        threads: threads that help with copying, from now on.

    Raises:
        CheckpointError: the snapshot lacks something that the state has.
        CorruptSnapshot: the snapshot's plain data is damaged.
    """

    def __init__(
        self,
        state: dict[str, Any],
        metadata: Mapping[str, str],
        tensors: Mapping[str, torch.Tensor],
        dtensors: DTensorLayouts = NO_DTENSORS,
        pieces: Mapping[str, TensorShard] = MappingProxyType({}),
        *,
        threads: CopyThreads,
    ) -> None:
        try:
            tree = json.loads(metadata[STATE_KEY])
        except (KeyError, ValueError) as cause:
            raise errors.CorruptSnapshot(f"a snapshot without a state: {cause!r}") from cause
        self._copies = ParallelCopies(threads)
        versions, found = module_versions.read(metadata), dtensor_layouts.read(metadata)
        lies = strides.read(metadata)
        order = ParameterOrder(
            parameter_names.read(metadata),
            parameter_names.names_of(stateful_members(state)),
            movable=dtensors is NO_DTENSORS,
        )
        boxes = shard_boxes.read(metadata)
        parts = _SavedValues(
            tensors, dtensors, pieces, versions, found, lies, boxes, order, self._copies
        )
        try:
            with _for_all_modes():
                self._apply = _dict(state, tree, parts, "")
        except BaseException:  # whatever it is: nobody else can end what was begun
            self._copies.discard()
            raise

    def copy_ahead(self, is_over: Callable[[], bool]) -> None:
        """Copy what goes into memory of its own, which nobody sees before ``finish``.

        Args:
            is_over: whether ``finish`` could begin.
        """
        self._copies.copy_ahead(is_over)

    def finish(self) -> None:
        """Bring the values into the live state; plain values of its dicts are replaced."""
        with torch.no_grad():
            self._copies.fill()
            self._apply()

    def discard(self) -> None:
        """It is another snapshot that is wanted; the live state is as it was."""
        self._copies.discard()


@contextlib.contextmanager
def _for_all_modes() -> Iterator[None]:
    """What is made is no inference tensor: a restore inside that mode is for training outside."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def _dict(live: dict[Any, Any], tree: Any, parts: _SavedValues, path: str) -> _Apply:
    saved = _pairs(tree, path)
    check_missing(live, saved.keys(), path)
    placings = {
        key: _loader_for(live.get(key), subtree, parts, f"{path}[{key!r}]")
        for key, subtree in saved.items()
    }

    def apply() -> Any:
        values = {key: placing() for key, placing in placings.items()}
        if path and type(live) is not dict:  # an OrderedDict's order may mean something
            live.clear()
        live.update(values)
        return live

    return apply


def _items(
    live: list[Any] | tuple[Any, ...], trees: list[Any], parts: _SavedValues, path: str
) -> _Apply:
    placings = [
        _loader_for(item, subtree, parts, f"{path}[{index}]")
        for index, (item, subtree) in enumerate(zip(live, trees, strict=True))
    ]

    def apply() -> Any:
        items = [placing() for placing in placings]
        if isinstance(live, tuple):
            return tuple(items)
        live[:] = items
        return live

    return apply


def _loader_for(live: Any, tree: Any, parts: _SavedValues, path: str) -> _Apply:
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
    return _replace(live, tree, parts, path)


def _replace(live: Any, tree: Any, parts: _SavedValues, path: str) -> _Apply:
    check_replaceable(live, tree, path)
    kept = plain_data.decode(tree, parts.copy)
    if type(live) is not type(kept) or not isinstance(live, (list, collections.Counter)):
        return lambda: kept

    def apply() -> Any:  # the script may have it by another name, too, as it may a dict
        live.clear()
        (live.extend if isinstance(live, list) else live.update)(kept)
        return live

    return apply


def _tensor(live: Any, target: torch.Tensor, tree: Any, parts: _SavedValues, path: str) -> _Apply:
    found = plain_data.decode(tree, parts.view)
    if not isinstance(found, torch.Tensor):
        return _replace(live, tree, parts, path)
    if found.shape != target.shape:
        check_shape(target, found, path)
        return _replace(live, tree, parts, path)
    if not is_convertible(found.dtype, target):
        return _replace(live, tree, parts, path)
    if parts.copies.schedule_overwrite(target, found):
        return lambda: live

    def apply() -> Any:
        with torch.inference_mode(mode=target.is_inference()), torch.no_grad():
            copyable(target).copy_(copyable(found))
        return live

    return apply


def _stateful(live: Any, target: Any, tree: Any, parts: _SavedValues, path: str) -> _Apply:
    versions = parts.versions.get(path)
    if isinstance(target, torch.nn.Module):
        given, own = _module_argument(target, tree, parts)
        given = with_versions(given, target, versions)
        check_module(target, given, own, path)
    else:
        given = plain_data.decode(tree, parts.copy)
        if isinstance(target, torch.optim.Optimizer):
            check_boxes(parts.boxes, f"{name_of_path(path)}.", parts.dtensors)
            parts.order.restore(target, given, path)
            given = index_parameters(target, given)
            check_optimizer(target, given, path)
        given = with_versions(given, target, versions)

    # All others take their state back in the script's own mode: a module may have been made in it.
    mode = _for_all_modes if isinstance(target, torch.optim.Optimizer) else contextlib.nullcontext

    def apply() -> Any:
        with mode(), compatible(target, path):
            if isinstance(target, torch.nn.Module):
                load_quant_state(given, target, path)
            target.load_state_dict(given)
        return live

    return apply


def _module_argument(
    module: torch.nn.Module, tree: Any, parts: _SavedValues
) -> tuple[Any, Mapping[str, torch.Tensor]]:
    """What load_state_dict is called with once copies are filled, and what is overwritten ahead."""
    # A module copies into its own parameters. Optimizers keep what they are given, and so may a
    # module that does more than copy, or has extra state: those get copies of their own.
    own = _overwritable_tensors(module)
    if not own or any(str(key).endswith("_extra_state") for key in _pairs(tree, "")):
        return rename_for_module(plain_data.decode(tree, parts.copy), module), {}
    given = rename_for_module(plain_data.decode(tree, parts.view), module)
    for name, tensor in own.items():
        if isinstance(given.get(name), torch.Tensor) and parts.copies.schedule_overwrite(
            tensor, given[name]
        ):
            given[name] = tensor  # which copy_ knows as the same
    return given, own


def _overwritable_tensors(module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
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
        raise errors.IncompatibleState(f"state{path} was not saved as a dict") from cause


def _no_tensor(name: str) -> object:
    raise errors.CorruptSnapshot(f"{name} stands as a key")
