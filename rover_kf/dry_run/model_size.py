# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a model and its optimizer, and how many bytes of tensors are alive at once.

The peak is what an accelerator would have to hold. It counts the storages that operations return,
each until it is freed. torch's own MemTracker does so by kind, but is no public part of torch and
differs between its versions.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_LOCAL_SCALAR = "aten::_local_scalar_dense"


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's has no types
    """While entered, the peak of what lives.

    Args:
        initial: tensors that live already and count: parameters, gradients, optimizer state.
        answers: give 1 where a program asks for a number that a fake tensor does not have.
    """

    def __init__(self, initial: Iterable[torch.Tensor] = (), *, answers: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._alive = 0
        self._answers = answers
        self.peak = 0
        """Bytes."""
        for tensor in initial:
            self._add(tensor)

    def reset_peak(self) -> None:
        """Look for the peak from now on."""
        self.peak = self._alive

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation, then count what it returned."""
        if self._answers and func.name().startswith(_LOCAL_SCALAR):
            return _unit_value(args[0].dtype)
        found = func(*args, **(kwargs or {}))
        for item in tree_iter(found):
            if isinstance(item, torch.Tensor):
                self._add(item)
        return found

    def _add(self, tensor: torch.Tensor) -> None:
        if type(tensor).__name__ == "FunctionalTensor" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - its identity, as torch uses it
        if key in self._sizes:
            self._alive += size - self._sizes[key]
        else:
            self._alive += size
            weakref.finalize(storage, self._drop, key).atexit = False
        self._sizes[key] = size
        self.peak = max(self.peak, self._alive)

    def _drop(self, key: int) -> None:
        self._alive -= self._sizes.pop(key, 0)


def _unit_value(dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return True
    make: Callable[[int], float | int] = float if dtype.is_floating_point else int
    return make(1)


def collect_parameters(
    optimizers: Iterable[torch.optim.Optimizer], module: nn.Module | None
) -> list[torch.Tensor]:
    """Every parameter that is trained or belongs to the module, once."""
    trained = (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    own = module.parameters() if module is not None else ()
    return list({id(tensor): tensor for tensor in (*trained, *own)}.values())


def collect_optimizer_state(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Tensors of the optimizers' state."""
    return [
        tensor
        for optimizer in optimizers
        for state in optimizer.state.values()
        for tensor in _tensors(state)
    ]


def collect_buffers(module: nn.Module | None) -> list[torch.Tensor]:
    """Buffers of the module."""
    return list(module.buffers()) if module is not None else []


def count_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Summed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def largest_layer(module: nn.Module | None) -> int:
    """Bytes of the parameters that one module has of its own, the most."""
    layers = module.modules() if module is not None else ()
    return max((count_bytes(layer.parameters(recurse=False)) for layer in layers), default=0)


def measure_copy_seconds(tensors: Iterable[torch.Tensor]) -> float:
    """What a copy of the tensors into memory of their own takes, once that memory is there."""
    held = [tensor.detach() for tensor in tensors]
    room = [torch.zeros_like(tensor) for tensor in held]
    begun = time.perf_counter()
    for target, source in zip(room, held, strict=True):
        target.copy_(source)
    return time.perf_counter() - begun


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
