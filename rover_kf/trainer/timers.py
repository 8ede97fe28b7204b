# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A rank's own work in a step: from the last step's end to the last gradient.

Collectives of data-parallel training follow it, or run at the same time. Where ranks wait before
(FSDP's forward pass), all take the same time, and none looks slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch.utils.hooks import RemovableHandle

T = TypeVar("T")


class DataWaitTimer:
    """A timer of the loop's waits for one loader."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def measure(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches, each one's wait counted."""
        begun = time.perf_counter()
        for batch in batches:
            self._seconds += time.perf_counter() - begun
            yield batch
            begun = time.perf_counter()

    def pop_seconds(self) -> float:
        """Seconds since it was asked last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class StepTimer:
    """A timer of one training process's own work in a step; on CUDA it measures nothing."""

    def __init__(self) -> None:
        self._handles: dict[int, RemovableHandle] = {}
        self._last = 0
        self._ready = self._began = 0.0
        self._watched = self._settled = False

    def begin_step(self, state: Mapping[str, object]) -> None:
        """A step begins, of a training with this state."""
        if not self._watched:
            self._watched = True
            modules = [value for value in state.values() if isinstance(value, torch.nn.Module)]
            for parameter in (each for module in modules for each in module.parameters()):
                self._hook(parameter)
        self._ready, self._began = 0.0, time.monotonic()

    def end_step(self) -> float:
        """Seconds of the step that ends now; 0 if its gradients were not seen."""
        if self._ready and not self._settled:
            # The same one is last in each step: only it is looked at, which costs next to nothing.
            self._settled = True
            for number in self._handles.keys() - {self._last}:
                self._handles.pop(number).remove()
        return max(self._ready - self._began, 0.0) if self._ready else 0.0

    def _hook(self, parameter: torch.nn.Parameter) -> None:
        number = id(parameter)
        if parameter.requires_grad and not parameter.is_cuda and number not in self._handles:

            def seen(_: torch.Tensor) -> None:
                self._last, self._ready = number, time.monotonic()

            handle = parameter.register_post_accumulate_grad_hook(seen)  # type: ignore[no-untyped-call] # torch's own
            self._handles[number] = handle
