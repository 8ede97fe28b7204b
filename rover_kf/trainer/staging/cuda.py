# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device into a slot: page-locked memory, a stream beside the training's, events.

The copies start when what was asked of the device before them is done, and run beside what is asked
of it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from rover_kf import errors

Pair = tuple[torch.Tensor, torch.Tensor]
"""Where to and where from."""


def host_register(buffer: torch.Tensor) -> None:
    """Register a slot's memory with CUDA, so that the device can write it by itself.

    Raises:
        CheckpointError: CUDA refuses.
    """
    _check(_runtime().cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0), buffer)


def host_unregister(buffer: torch.Tensor) -> None:
    """Take the registration back; before the memory is unmapped.

    Raises:
        CheckpointError: CUDA refuses.
    """
    _check(_runtime().cudaHostUnregister(buffer.data_ptr()), buffer)


class Streams:
    """A side stream for each device that the state is on."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start(self, pairs: Iterable[Pair], *, hold: bool) -> list[Callable[[], None]]:
        """Start the copies.

        Args:
            pairs: with sources on CUDA devices; kept by the caller until the copies are done.
            hold: whether what is asked of the devices from now on waits for them.

        Returns:
            Calls that return when they are done, one a device.
        """
        found: dict[torch.device, list[Pair]] = {}
        for target, source in pairs:
            found.setdefault(source.device, []).append((target, source))
        return [
            self._start(place, members, hold=hold).synchronize for place, members in found.items()
        ]

    def _start(self, device: torch.device, pairs: list[Pair], *, hold: bool) -> torch.cuda.Event:
        current = torch.cuda.current_stream(device)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side = self._streams[device]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side), torch.no_grad():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            done.record(side)
        if hold:
            current.wait_event(done)
        return done


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check(code: object, buffer: torch.Tensor) -> None:
    number = int(code)  # type: ignore[call-overload]
    if number != 0:
        raise errors.CheckpointError(
            f"CUDA refuses to register {buffer.numel()} bytes of the arena (error {number}); "
            "does the container's limit of locked memory allow it?"
        )
