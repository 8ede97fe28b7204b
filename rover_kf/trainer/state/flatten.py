# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A user's state taken apart into named tensors and plain data, and put together again.

The state is what a training loop has: modules, optimizers, schedulers, anything with
``state_dict`` and ``load_state_dict``, tensors, plain data, nested as one likes. Whatever cannot be
stored exactly is refused by its path before a byte is written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from rover_kf import errors
from rover_kf.checkpoint.format import plain_data, tensor_layout
from rover_kf.checkpoint.format.snapshot import STATE_KEY, Entry
from rover_kf.checkpoint.resharding.prefix_index import index_by_prefix
from rover_kf.trainer.state import (
    compiled_modules,
    dtensor,
    dtensor_layouts,
    module_versions,
    parameter_names,
    shard_boxes,
    sharded_optimizers,
    strides,
)
from rover_kf.trainer.state.dtensor import DTensorLayouts, LocalShard
from rover_kf.trainer.state.module_versions import Versions

DTYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16", torch.uint16: "U16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
"""Those that the file format knows; others are stored as bytes under torch's own name."""

PLAIN = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
"""Classes whose values are their bytes and nothing else; Buffer is new in torch 2.5."""

SUB_BYTE = frozenset(
    getattr(torch, f"{kind}{bits}")
    for kind in ("int", "uint")
    for bits in range(1, 8)
    if hasattr(torch, f"{kind}{bits}")
)
"""Integers of 1 to 7 bits in a byte each: torch has their names, but no copy of them."""

_IsReplicated = Callable[[str, torch.Tensor], bool]
"""Whether a tensor, by its path, is the same on all ranks where the state is replicated."""

_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


@runtime_checkable
class Stateful(Protocol):
    """Modules, optimizers, schedulers, samplers and the user's own."""

    def state_dict(self) -> Any:
        """What is to be saved."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


@dataclasses.dataclass(frozen=True, slots=True)
class FlatState:
    """A state, taken apart; nothing is copied yet."""

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]
    dtensors: DTensorLayouts = dtensor.NO_DTENSORS
    boxes: bool = False
    """The metadata names boxes of tensors, though none of these is a DTensor."""
    json_metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Texts of the metadata as JSON, of those that are known from the last time."""

    @property
    def is_sharded(self) -> bool:
        """Whether ranks hold parts of larger tensors."""
        return self.boxes or bool(self.dtensors.exact)

    def entries(self) -> tuple[Entry, ...]:
        """What a layout is planned from, in the tensors' order."""
        return tuple(
            Entry(name, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.element_size())
            for name, tensor in self.tensors.items()
        )


def dtype_name(dtype: torch.dtype) -> str:
    """As it is written in a file."""
    return DTYPES.get(dtype) or str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The type of a name in a file.

    Raises:
        CheckpointError: this torch does not have it.
    """
    found = _BY_NAME.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise errors.CheckpointError(
            f"a tensor of type {name} was saved; torch {torch.__version__} does not know it"
        )
    return found


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes where torch cannot copy its type."""
    return tensor.view(torch.uint8) if tensor.dtype in SUB_BYTE else tensor


def unwrap(value: object) -> object:
    """The module inside DistributedDataParallel, DataParallel, torch.compile; else the value."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while isinstance(value, wrappers) or compiled_modules.is_compiled(value):
        value = (
            value.module if isinstance(value, wrappers) else compiled_modules.original_module(value)
        )
    return value


def stateful_members(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield path and object of each Stateful that a state's dicts, lists and tuples hold."""
    target = unwrap(value)
    if is_stateful(target):
        yield path, target
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from stateful_members(item, f"{path}[{key!r}]")


def parameter_metadata(state: Mapping[str, object]) -> dict[str, str]:
    """Return the metadata that names the parameters of the state's optimizers."""
    names = parameter_names.names_of(stateful_members(dict(state)))
    return {parameter_names.KEY: parameter_names.to_text(names)} if names else {}


def flatten(state: Mapping[str, object], *, replicated: bool = True) -> FlatState:
    """Name every tensor and encode the rest.

    Args:
        state: of one rank.
        replicated: whether parameters and optimizer state are the same on every rank (DDP).

    Raises:
        UnsupportedState: a value cannot be stored; the message has its path.
    """
    return _Flattener(replicated).flatten(state)


class _Flattener:
    """One state on its way apart."""

    def __init__(self, replicated: bool) -> None:  # noqa: FBT001 - of one caller
        self._replicated = replicated
        self._tensors: dict[str, torch.Tensor] = {}
        self._rank_local: set[str] = set()
        self._layouts: dict[object, LocalShard] = {}
        self._exact: dict[str, LocalShard] = {}
        self._parameters: dict[str, LocalShard] = {}
        self._boxes: dict[str, shard_boxes.ShardBox] = {}
        """Of plain tensors that an optimizer keeps of a parameter's local part."""
        self._saved_layouts: dict[str, LocalShard] = {}
        """DTensors that a new process has none of."""
        self._versions: dict[str, Versions] = {}
        self._strides: dict[str, strides.Strides] = {}

    def flatten(self, state: Mapping[str, object]) -> FlatState:
        """All of it."""
        tree = plain_data.encode(dict(state), self._leaf)
        pieces = {name: shard.piece for name, shard in self._exact.items()}
        told = tensor_layout.TensorLayout(
            frozenset(self._rank_local), pieces, complete=bool(pieces)
        )
        metadata = {
            STATE_KEY: json.dumps(tree, separators=(",", ":")),
            tensor_layout.LAYOUT_KEY: told.to_text(),
        }
        if self._saved_layouts:
            metadata[dtensor_layouts.KEY] = dtensor_layouts.to_text(self._saved_layouts)
        if self._versions:
            metadata[module_versions.KEY] = module_versions.to_text(self._versions)
        metadata |= parameter_metadata(state)
        if self._boxes:
            metadata[shard_boxes.KEY] = shard_boxes.to_text(self._boxes)
        if self._strides:
            metadata[strides.KEY] = strides.to_text(self._strides)
        found = DTensorLayouts(self._exact, index_by_prefix(self._parameters))
        return FlatState(self._tensors, metadata, found)

    def _leaf(self, path: str, value: object) -> Any:
        value = unwrap(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value, shared=False)
        if not is_stateful(value):
            return plain_data.reject(path, value)
        shared: _IsReplicated = lambda *_: False  # noqa: E731 - one of three
        found = sharded_optimizers.state_dict_of(value)
        if isinstance(value, torch.nn.Module):
            shared = _parameter_predicate(found, value, path)
        elif isinstance(value, torch.optim.Optimizer):
            self._record_parameters(path, value)
            shared = lambda *_: True  # noqa: E731 - one of three

        def inner(below: str, item: object) -> Any:
            if isinstance(item, torch.Tensor):
                return self._tensor(below, item, shared=shared(below, item))
            return self._leaf(below, item)

        versions = module_versions.versions_of(found)
        if versions is not None:
            self._versions[path] = versions
        if isinstance(value, torch.nn.Module):
            found = compiled_modules.strip_compile_prefixes(found)
        return plain_data.encode(found, inner, path)

    def _tensor(self, path: str, value: torch.Tensor, *, shared: bool) -> Any:
        shard = dtensor.local_shard_of(value, path, self._layouts)
        name = _name(checked_tensor(dtensor.local_part(value), path), path, self._tensors)
        parameter = self._parameter_of(name)
        if shard is not None:
            self._exact[name] = shard
            if not shared or (parameter is not None and not shard.has_layout_of(parameter)):
                self._saved_layouts[name] = shard
        elif not (shared and self._replicated) or (parameter is not None and value.ndim):
            # Of a parameter in pieces it is about the piece that is here.
            self._rank_local.add(name)
            if parameter is not None and shard_boxes.belongs_to_shard(value, parameter):
                self._boxes[name] = shard_boxes.box_of(parameter)
        lies = strides.stride_of(value) if shard is None else None
        if lies is not None:
            self._strides[name] = lies
        return {"T": name}

    def _parameter_of(self, name: str) -> LocalShard | None:
        """The layout of the parameter that an optimizer keeps a tensor of."""
        begin = name.rpartition(".")[0] if self._parameters else ""
        while begin and begin + "." not in self._parameters:
            begin = begin.rpartition(".")[0]
        return self._parameters.get(begin + ".")

    def _record_parameters(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self._replicated:
            sharded_optimizers.reject_sharded_optimizer(path, parameters)
        for index, parameter in enumerate(parameters):
            shard = dtensor.local_shard_of(parameter, path, self._layouts)
            if shard is not None:
                self._parameters[name_of_path(f"{path}['state'][{index}]") + "."] = shard


def _parameter_predicate(state_dict: Any, module: torch.nn.Module, path: str) -> _IsReplicated:
    """Which tensors of its state dict are its parameters.

    By their names; those that hooks give other names (``checkpoint_wrapper``, Lightning's Fabric)
    by where they are.
    """
    named = [*module.named_parameters(remove_duplicate=False)]
    told = state_dict if isinstance(state_dict, Mapping) else {}
    names = {f"{path}[{compiled_modules.strip_compile_prefix(name)!r}]" for name, _ in named}
    renamed = {_data_ptr(one) for name, one in named if name not in told}
    renamed.discard(0)
    return lambda below, item: below in names or (bool(renamed) and _data_ptr(item) in renamed)


def _data_ptr(tensor: torch.Tensor) -> int:
    return 0 if torch.nn.parameter.is_lazy(tensor) else dtensor.local_part(tensor).data_ptr()


def checked_tensor(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """A tensor that is its bytes and nothing else, without its history.

    Raises:
        UnsupportedState: it is more than that, or has no bytes; the message has its path.
    """
    reason = ""
    if type(tensor) not in PLAIN:
        reason = f"of class {type(tensor).__name__}; {_instead_of(tensor)}"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        reason = f"of layout {tensor.layout}; pass it dense and not quantized"
    elif tensor.is_meta:
        reason = "on the meta device: it has no data"
    if reason:
        raise errors.UnsupportedState(f"state{path} is a tensor {reason}")
    return tensor.detach()


def _instead_of(tensor: Any) -> str:
    """What to do about a tensor that is more than its bytes."""
    if torch.nn.parameter.is_lazy(tensor):
        return "pass a batch through its lazy module"
    if not hasattr(tensor, "__tensor_flatten__"):
        return "pass its local or full tensor"
    inner = ", ".join(tensor.__tensor_flatten__()[0])
    return (
        f"its values are in {inner}; put an object in its owner's place whose state_dict gives "
        "these and whose load_state_dict makes it anew of them, or leave out what the script loads "
        "anyway (frozen weights beside adapters). bitsandbytes' optimizers keep plain tensors"
    )


def _name(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    text = name_of_path(path)
    name, count = text, 1
    while name in tensors or name == "__metadata__":
        count += 1
        name = f"{text}#{count}"
    tensors[name] = tensor
    return name


def name_of_path(path: str) -> str:
    """Return the name that a value at that path has in the file."""
    # "['model']['fc.weight']" reads as model.fc.weight in the file.
    text = path.replace("']['", ".").replace("][", ".").strip("[]'").replace("'", "")
    text = text.replace("]", "").replace("[", ".")
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def is_stateful(value: object) -> bool:
    """Whether it gives and takes a state dict; its class does not count."""
    return isinstance(value, Stateful) and not isinstance(value, type)
