# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a model and its optimizer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn


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


def collect_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients that are there now."""
    return [tensor.grad for tensor in parameters if tensor.grad is not None]


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
