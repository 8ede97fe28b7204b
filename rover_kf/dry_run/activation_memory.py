# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many bytes of tensors are alive at once: what an accelerator would have to hold.

Counts the storages that operations return, each until it is freed. torch's own MemTracker does so
by kind, but is no public part of torch and differs between its versions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
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
