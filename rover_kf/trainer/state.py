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
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from rover_kf import errors
from rover_kf.checkpoint import plain
from rover_kf.checkpoint.snapshot import STATE_KEY, Entry

DTYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16", torch.uint16: "U16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
"""Those that the file format knows; others are stored as bytes under torch's own name."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
"""Classes whose values are their bytes and nothing else; Buffer is new in torch 2.5."""

_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


@runtime_checkable
class Stateful(Protocol):
    """Modules, optimizers, schedulers, samplers and the user's own."""

    def state_dict(self) -> Any:
        """What is to be saved."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """A state, taken apart; nothing is copied yet."""

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]

    def entries(self) -> tuple[Entry, ...]:
        """What a layout is planned from, in the tensors' order."""
        return tuple(
            Entry(name, dtype_name(t.dtype), tuple(t.shape), t.element_size())
            for name, t in self.tensors.items()
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


def unwrap(value: object) -> object:
    """The module inside DistributedDataParallel or DataParallel; else the value itself."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return value.module if isinstance(value, wrappers) else value


def take_apart(state: Mapping[str, object]) -> Parts:
    """Name every tensor and encode the rest.

    Raises:
        UnsupportedState: a value cannot be stored; the message has its path.
    """
    tensors: dict[str, torch.Tensor] = {}

    def leaf(path: str, value: object) -> Any:
        value = unwrap(value)
        if isinstance(value, torch.Tensor):
            return {"T": _name(_checked(value, path), path, tensors)}
        if isinstance(value, Stateful) and not isinstance(value, type):
            return plain.encode(value.state_dict(), leaf, path)
        return plain.refuse(path, value)

    tree = plain.encode(dict(state), leaf)
    return Parts(tensors, {STATE_KEY: json.dumps(tree, separators=(",", ":"))})


def _checked(tensor: torch.Tensor, path: str) -> torch.Tensor:
    reason = ""
    if type(tensor) not in _PLAIN:
        reason = f"of class {type(tensor).__name__}; pass its local or full tensor"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        reason = f"of layout {tensor.layout}; pass it dense and not quantized"
    elif tensor.is_meta:
        reason = "on the meta device: it has no data"
    if reason:
        raise errors.UnsupportedState(f"state{path} is a tensor {reason}")
    return tensor.detach()


def _name(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    # "['model']['fc.weight']" reads as model.fc.weight in the file.
    text = path.replace("']['", ".").replace("][", ".").strip("[]'").replace("'", "")
    text = text.replace("]", "").replace("[", ".")
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    name, count = text, 1
    while name in tensors or name == "__metadata__":
        count += 1
        name = f"{text}#{count}"
    tensors[name] = tensor
    return name


def put_together(
    state: dict[str, Any], metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Bring saved values into a live state, in place.

    Args:
        state: as it was given to save, freshly built; its plain values are replaced, modules and
            the like are loaded, tensors are overwritten.
        metadata: of the snapshot.
        tensors: views of the snapshot's bytes; always copied from, never handed out.

    Raises:
        CheckpointError: the snapshot lacks something that the state has.
        TornSnapshot: the snapshot's plain data is damaged.
    """
    with torch.no_grad():
        try:
            tree = json.loads(metadata[STATE_KEY])
        except (KeyError, ValueError) as cause:
            raise errors.TornSnapshot(f"a snapshot without a state: {cause!r}") from cause
        _into_dict(state, tree, tensors, "")


def _into_dict(
    live: dict[Any, Any], tree: Any, tensors: Mapping[str, torch.Tensor], path: str
) -> None:
    saved = _pairs(tree, path)
    for key, value in live.items():
        if key not in saved and (_is_stateful(value) or isinstance(value, torch.Tensor)):
            raise errors.CheckpointError(
                f"state{path}[{key!r}] is not in the checkpoint, which has "
                f"{sorted(map(str, saved))}; was it saved by another script?"
            )
    for key, subtree in saved.items():
        live[key] = _into(live.get(key), subtree, tensors, f"{path}[{key!r}]")


def _into(live: Any, tree: Any, tensors: Mapping[str, torch.Tensor], path: str) -> Any:
    """The value to stand in the live value's place; the live one itself where it can stay."""
    target: Any = unwrap(live)
    if isinstance(target, torch.Tensor):
        found = plain.decode(tree, tensors.__getitem__)
        fits = isinstance(found, torch.Tensor) and found.shape == target.shape
        if fits and found.dtype == target.dtype:
            target.copy_(found)
            return live
    elif _is_stateful(target):
        target.load_state_dict(plain.decode(tree, _giver(target, tree, tensors)))
        return live
    elif type(live) is dict and isinstance(tree, dict) and "d" in tree:
        _into_dict(live, tree, tensors, path)
        return live
    elif type(live) is list and isinstance(tree, dict) and len(tree.get("l", ())) == len(live):
        live[:] = [
            _into(item, subtree, tensors, f"{path}[{index}]")
            for index, (item, subtree) in enumerate(zip(live, tree.get("l", ()), strict=True))
        ]
        return live
    return plain.decode(tree, _copies(tensors))


def _giver(
    target: object, tree: Any, tensors: Mapping[str, torch.Tensor]
) -> Callable[[str], torch.Tensor]:
    # A module copies into its own parameters. Optimizers keep what they are given, and so may a
    # module's extra state: those get copies of their own.
    module = isinstance(target, torch.nn.Module)
    if module and not any(str(key).endswith("_extra_state") for key in _pairs(tree, "")):
        return tensors.__getitem__
    return _copies(tensors)


def _copies(tensors: Mapping[str, torch.Tensor]) -> Callable[[str], torch.Tensor]:
    return lambda name: tensors[name].clone()


def _pairs(tree: Any, path: str) -> dict[Any, Any]:
    try:
        return {plain.decode(key, _no_tensor): item for key, item in tree["d"]}
    except (TypeError, KeyError, ValueError) as cause:
        raise errors.CheckpointError(f"state{path} was not saved as a dict") from cause


def _no_tensor(name: str) -> object:
    raise errors.TornSnapshot(f"{name} stands as a key")


def _is_stateful(value: object) -> bool:
    return isinstance(value, Stateful) and not isinstance(value, type)
